/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

struct gs_names *gs_names_create(struct gs_ring *ring)
{
	struct gs_names *names = mmap(NULL, sizeof *names, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (names == MAP_FAILED)
		return NULL;
	names->ring = ring;
	names->epoch = 1;
	return names;
}

static uint64_t mix(uint64_t value)
{
	value *= 0x9e3779b97f4a7c15ull;
	return value ^ value >> 29;
}

static uint32_t hash_bytes(const char *at, size_t size)
{
	uint64_t hash = size, word;
	for (; size >= 8; size -= 8, at += 8) {
		memcpy(&word, at, 8);
		hash = mix(hash ^ word);
	}
	word = 0;
	memcpy(&word, at, size);
	hash = mix(hash ^ word);
	return (uint32_t)(hash ^ hash >> 32);
}

static uint32_t add_string(struct gs_names *names, const char *text, uint32_t length, uint32_t hash, int cut)
{
	struct gs_ring *ring = names->ring;
	uint32_t size = (uint32_t)(sizeof(struct gs_string) + length + 1 + 7) & ~7u;
	uint32_t id = gs_arena_take(ring, size);
	if (!id)
		return 0;
	struct gs_string *string = (struct gs_string *)(ring->arena + id);
	string->entry.type = GS_ENTRY_STRING;
	string->entry.flags = (uint16_t)cut;
	string->length = length;
	string->hash = hash;
	memcpy(string->text, text, length);
	string->text[length] = 0;
	gs_arena_publish(ring, id, size);
	gs_add(ring, GS_COUNTER_strings, 1);
	if (cut)
		gs_add(ring, GS_COUNTER_strings_cut, 1);
	return id;
}

/* The slot of a text, or the free one where it belongs (then *id is 0); GS_STRING_SLOTS when the table is full. Needs no
 * lock: slots are filled once, the id last. */
static uint32_t find_string(struct gs_names *names, const char *text, uint32_t length, uint32_t hash, uint32_t *id)
{
	for (uint32_t i = 0; i < GS_STRING_SLOTS; i++) {
		uint32_t at = (hash + i) & (GS_STRING_SLOTS - 1);
		*id = __atomic_load_n(&names->strings[at].id, __ATOMIC_ACQUIRE);
		if (!*id)
			return at;
		if (names->strings[at].hash != hash)
			continue;
		const struct gs_string *known = (const struct gs_string *)(names->ring->arena + *id);
		if (known->length == length && !memcmp(known->text, text, length))
			return at;
	}
	*id = 0;
	return GS_STRING_SLOTS;
}

/* The lock is held for a microsecond, by a thread that may be preempted: a launch tries for about so long, then goes without. */
static int lock(struct gs_names *names, int patient)
{
	for (int tries = 0; atomic_flag_test_and_set_explicit(&names->busy, memory_order_acquire); tries++) {
		if (patient)
			sched_yield();
		else if (tries == 500)
			return 0;
	}
	return 1;
}

uint32_t gs_string_id(struct gs_names *names, const char *text, int patient)
{
	uint32_t length = (uint32_t)strnlen(text, GS_STRING_LIMIT + 1), id;
	int cut = length > GS_STRING_LIMIT;
	if (cut)
		length = GS_STRING_LIMIT;
	uint32_t hash = hash_bytes(text, length);
	find_string(names, text, length, hash, &id);
	if (id)
		return id;
	if (!lock(names, patient)) {
		gs_add(names->ring, GS_COUNTER_names_busy, 1);
		return 0;
	}
	uint32_t at = find_string(names, text, length, hash, &id);
	if (!id && at < GS_STRING_SLOTS) {
		id = add_string(names, text, length, hash, cut);
		names->strings[at].hash = hash;
		__atomic_store_n(&names->strings[at].id, id, __ATOMIC_RELEASE);
	}
	atomic_flag_clear_explicit(&names->busy, memory_order_release);
	return id;
}

uint32_t gs_pointer_id(struct gs_names *names, const char *text, int patient)
{
	uintptr_t key = (uintptr_t)text;
	struct gs_pointer *slot = &names->pointers[mix(key) >> 32 & (GS_POINTER_SLOTS - 1)];
	uint32_t epoch = atomic_load_explicit(&names->epoch, memory_order_relaxed);
	if (atomic_load_explicit(&slot->key, memory_order_acquire) == key) {
		uint64_t value = atomic_load_explicit(&slot->value, memory_order_acquire);
		/* the key again: a writer clears it before it changes the value */
		if (value >> 32 == epoch && atomic_load_explicit(&slot->key, memory_order_relaxed) == key)
			return (uint32_t)value;
	}
	uint32_t id = gs_string_id(names, text, patient);
	/* two writers of one slot may leave one's key with the other's value; so only one may write: who swaps the key out */
	uintptr_t old = atomic_load_explicit(&slot->key, memory_order_relaxed);
	if (id && old != 1 && atomic_compare_exchange_strong(&slot->key, &old, 1)) {
		atomic_store_explicit(&slot->value, (uint64_t)epoch << 32 | id, memory_order_release);
		atomic_store_explicit(&slot->key, key, memory_order_release);
	}
	return id;
}

void gs_names_forget_pointers(struct gs_names *names)
{
	atomic_fetch_add_explicit(&names->epoch, 1, memory_order_relaxed);
}

static const size_t skipped = sizeof(struct gs_entry);

static uint32_t add_shape(struct gs_names *names, const struct gs_shape *shape, int coarse)
{
	struct gs_ring *ring = names->ring;
	uint32_t id = gs_arena_take(ring, sizeof *shape);
	if (!id)
		return 0;
	struct gs_shape *entry = (struct gs_shape *)(ring->arena + id);
	memcpy((char *)entry + skipped, (const char *)shape + skipped, sizeof *shape - skipped);
	entry->entry.type = GS_ENTRY_SHAPE;
	entry->entry.flags = (uint16_t)coarse;
	gs_arena_publish(ring, id, sizeof *shape);
	gs_add(ring, GS_COUNTER_shapes, 1);
	return id;
}

/* Its slot: the shape's own, or the free one where it belongs; NULL when the table is full. */
static uint32_t *find_shape(struct gs_names *names, const struct gs_shape *shape)
{
	const char *wanted = (const char *)shape + skipped;
	uint32_t hash = hash_bytes(wanted, sizeof *shape - skipped);
	for (uint32_t i = 0; i < GS_SHAPE_SLOTS; i++) {
		uint32_t *slot = &names->shapes[(hash + i) & (GS_SHAPE_SLOTS - 1)];
		if (!*slot || !memcmp(names->ring->arena + *slot + skipped, wanted, sizeof *shape - skipped))
			return slot;
	}
	return NULL;
}

uint32_t gs_shape_id(struct gs_names *names, const struct gs_shape *shape)
{
	struct gs_ring *ring = names->ring;
	uint32_t *slot = find_shape(names, shape);
	if (slot && *slot)
		return *slot;
	int coarse = __atomic_load_n(&ring->control->arena_head, __ATOMIC_RELAXED) > ring->arena_size / 4 * 3;
	if (!coarse && slot && (*slot = add_shape(names, shape, 0)))
		return *slot;
	struct gs_shape plain = {.name = shape->name};
	slot = find_shape(names, &plain);
	if (slot && !*slot)
		*slot = add_shape(names, &plain, 1);
	gs_add(ring, slot && *slot ? GS_COUNTER_shapes_coarse : GS_COUNTER_shapes_full, 1);
	return slot ? *slot : 0;
}
