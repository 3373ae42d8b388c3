/* SPDX-License-Identifier: Apache-2.0 */
/* A growing open-addressed hash index: hash -> id. The things themselves lie elsewhere, in the order of their ids. */
#ifndef GPUSTROBE_INDEX_H
#define GPUSTROBE_INDEX_H

#include <stdint.h>

#define GS_NO_ID UINT32_MAX

struct gs_index_slot {
	uint32_t hash;
	uint32_t next_id; /* id + 1; 0 = empty */
};

struct gs_index {
	struct gs_index_slot *slots;
	uint32_t size; /* power of two, or 0 */
	uint32_t used;
};

typedef int (*gs_same)(const void *table, uint32_t id, const void *wanted);

/* The id whose thing is the same as `wanted`, or GS_NO_ID. */
uint32_t gs_index_find(const struct gs_index *x, uint32_t hash, gs_same same, const void *table, const void *wanted);
/* Makes room for one more: 0, or -1 without memory (then the index is as it was). Call before gs_index_add. */
int gs_index_reserve(struct gs_index *x);
void gs_index_add(struct gs_index *x, uint32_t hash, uint32_t id);
/* The thing known as `old` is `id` from now on. */
void gs_index_replace(struct gs_index *x, uint32_t hash, uint32_t old, uint32_t id);
void gs_index_clear(struct gs_index *x); /* keeps its memory */
void gs_index_free(struct gs_index *x);

static inline uint64_t gs_mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0x9E3779B97F4A7C15ull; /* 2^64 / golden ratio */
	return hash ^ (hash >> 32);
}

#endif
