/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that were sampled, the living and the gone, found by (tgid, start_boottime); the least recently sampled go first. */
#ifndef GPUSTROBE_PROCESS_CACHE_H
#define GPUSTROBE_PROCESS_CACHE_H

#include <stdint.h>

#include "mappings.h"

enum gs_reason { GS_REASON_NONE, GS_REASON_STALE, GS_REASON_UNRESOLVED, GS_REASONS };

struct gs_cached {
	struct gs_cached *next;           /* same bucket */
	struct gs_cached *older, *newer;  /* by last sample */
	uint32_t tgid;
	uint32_t count;
	uint64_t start_boottime;
	uint64_t exec_vm;
	uint64_t start_stack;
	struct gs_row *rows; /* sorted by start */
	struct gs_process_details *details; /* allocated to its length; NULL = not read yet */
	uint32_t details_bytes;
	uint32_t first, published; /* block in the BPF array; published = 0: none */
	uint64_t first_seen, last_sampled, last_listed, last_checked, details_read, ended; /* ns, 0 = never */
	uint64_t wait[GS_REASONS]; /* ns after a listing before another is worth it */
	int64_t credit; /* ns of listing it may still take */
	uint64_t credit_at;
	struct gs_python *python;  /* NULL: no interpreter, or none yet */
	uint64_t python_tried;
	uint64_t python_wait;      /* ns before another look; 0 = nothing to wait for */
	struct gs_jit_view *jit;   /* NULL: no JIT code known */
	uint64_t jit_asked;        /* ns */
	uint64_t jit_wait;         /* ns after an answer before another is worth it */
	uint8_t jit_pending, jit_rebuild;
	uint8_t jit_none;          /* none of its files brings the interface; void when mappings change */
	uint8_t answer;      /* enum gs_listing of the last listing */
};

struct gs_cache {
	struct gs_cached **buckets;
	uint32_t mask;
	uint32_t count;
	uint64_t bytes; /* rows and details */
	struct gs_cached *oldest, *newest;
};

int gs_cache_open(struct gs_cache *cache, uint32_t max_processes); /* 0 or ENOMEM */
void gs_cache_close(struct gs_cache *cache);

struct gs_cached *gs_cache_find(const struct gs_cache *cache, uint32_t tgid, uint64_t start_boottime);
/* Another life of the same PID, NULL if none is cached. */
struct gs_cached *gs_cache_other(const struct gs_cache *cache, const struct gs_cached *p, const struct gs_cached *after);
struct gs_cached *gs_cache_add(struct gs_cache *cache, uint32_t tgid, uint64_t start_boottime);
void gs_cache_touch(struct gs_cache *cache, struct gs_cached *p); /* becomes the newest */
void gs_cache_set_rows(struct gs_cache *cache, struct gs_cached *p, struct gs_row *rows, uint32_t count); /* takes over rows */
void gs_cache_set_details(struct gs_cache *cache, struct gs_cached *p, const struct gs_process_details *details); /* copies */
void gs_cache_remove(struct gs_cache *cache, struct gs_cached *p);

#endif
