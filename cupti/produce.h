/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's side of the ring (cupti/ring.h): any thread may call these; none waits, none allocates. */
#ifndef GPUSTROBE_PRODUCE_H
#define GPUSTROBE_PRODUCE_H

#include "ring.h"

struct gs_ring {
	struct gs_control *control;
	char *records;
	char *arena;
	uint32_t slots;
	uint32_t arena_size;
	int fd;
};

/* Makes, maps and seals the memfd. 0, or the errno. slots is a power of two. */
int gs_ring_create(struct gs_ring *ring, uint32_t slots, uint32_t arena_size);

/* Writes n records of 64 bytes (their commit is set here). Returns how many found room; the rest is counted as ring_full. */
uint32_t gs_ring_push(struct gs_ring *ring, const void *records, uint32_t n);

/* Takes `size` bytes (a multiple of 8) of the arena: byte offset, or 0 when full. The caller publishes with gs_arena_publish. */
uint32_t gs_arena_take(struct gs_ring *ring, uint32_t size);
void gs_arena_publish(struct gs_ring *ring, uint32_t id, uint32_t size);

static inline void gs_add(struct gs_ring *ring, enum gs_counter counter, uint64_t n)
{
	__atomic_fetch_add(&ring->control->counters[counter], n, __ATOMIC_RELAXED);
}

static inline uint64_t gs_counter_value(struct gs_ring *ring, enum gs_counter counter)
{
	return __atomic_load_n(&ring->control->counters[counter], __ATOMIC_RELAXED);
}

#endif
