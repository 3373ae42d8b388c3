/* SPDX-License-Identifier: Apache-2.0 */
#include "index.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SIZE 256u

uint32_t gs_index_find(const struct gs_index *x, uint32_t hash, gs_same same, const void *table, const void *wanted)
{
	for (uint32_t i = hash; x->size; i++) {
		const struct gs_index_slot *slot = &x->slots[i & (x->size - 1)];

		if (!slot->next_id)
			break;
		if (slot->hash == hash && same(table, slot->next_id - 1, wanted))
			return slot->next_id - 1;
	}
	return GS_NO_ID;
}

static void put(struct gs_index_slot *slots, uint32_t size, struct gs_index_slot entry)
{
	uint32_t i = entry.hash;

	while (slots[i & (size - 1)].next_id)
		i++;
	slots[i & (size - 1)] = entry;
}

int gs_index_reserve(struct gs_index *x)
{
	uint32_t size = x->size ? x->size * 2 : FIRST_SIZE;

	if (x->used + 1 <= x->size / 4 * 3)
		return 0;

	struct gs_index_slot *slots = size ? calloc(size, sizeof(*slots)) : NULL;

	if (!slots)
		return -1;
	for (uint32_t i = 0; i < x->size; i++)
		if (x->slots[i].next_id)
			put(slots, size, x->slots[i]);
	free(x->slots);
	x->slots = slots;
	x->size = size;
	return 0;
}

void gs_index_add(struct gs_index *x, uint32_t hash, uint32_t id)
{
	put(x->slots, x->size, (struct gs_index_slot){ hash, id + 1 });
	x->used++;
}

void gs_index_replace(struct gs_index *x, uint32_t hash, uint32_t old, uint32_t id)
{
	for (uint32_t i = hash; x->size && x->slots[i & (x->size - 1)].next_id; i++) {
		struct gs_index_slot *slot = &x->slots[i & (x->size - 1)];

		if (slot->hash == hash && slot->next_id == old + 1) {
			slot->next_id = id + 1;
			return;
		}
	}
}

void gs_index_clear(struct gs_index *x)
{
	if (x->slots)
		memset(x->slots, 0, x->size * sizeof(*x->slots));
	x->used = 0;
}

void gs_index_free(struct gs_index *x)
{
	free(x->slots);
	memset(x, 0, sizeof(*x));
}
