/* SPDX-License-Identifier: Apache-2.0 */
/* What happens inside the application's own launch calls: CUPTI's callback at their entry and exit, any thread. */
#ifndef GPUSTROBE_LAUNCHES_H
#define GPUSTROBE_LAUNCHES_H

#include "abi.h"
#include "calls.h"
#include "names.h"
#include "windows.h"

#define GS_STRATA 8192 /* (thread, function) pairs of a window; beyond them, a first launch counts as a later one */
#define GS_COUNT_SLOTS 4096

struct gs_launches {
	struct gs_ring *ring;
	struct gs_names *names;
	struct gs_windows *windows;
	struct gs_calls calls;
	int (*graph_id)(void *graph, uint32_t *id); /* may be NULL */
	uint64_t seed;
	uint32_t generation; /* of the subscription: a new one voids what threads remember of calls they are in */
	uint32_t counting;
	uint32_t recording;  /* activity is on: calls that no window covers are neither in nor out */
	uint32_t forked;
	uint32_t finalize;   /* 1: the next outermost exit calls at_exit, once */
	void (*at_exit)(void);
	int32_t inside;      /* launches of windows whose call has not returned */
	uint64_t counting_since; /* mono */
	uint64_t strata[GS_STRATA]; /* key's upper half << 32 | window */
	struct {
		uint64_t key;   /* enum gs_call << 32 | string id or graph id; 0 = free */
		uint64_t count;
		uint64_t told;  /* as last written to the ring; our thread only */
	} counts[GS_COUNT_SLOTS];
};

extern struct gs_launches gs_launches;

/* cupti_callback */
void gs_launch_callback(void *user, int domain, uint32_t cbid, const void *data);

/* First launch of `key` by its kind in this window? */
int gs_first_in_stratum(uint64_t *strata, uint64_t key, uint32_t window);

/* Starts exact counting anew at `now`, or ends it (0). Our thread, while no callback is enabled. */
void gs_count_from(struct gs_launches *launches, uint64_t now);

/* Writes a COUNT record for each value that changed. Our thread. */
void gs_tell_counts(struct gs_launches *launches, uint64_t now);

/* Where the agent's uprobe stands: called for each launch whose stack is wanted, on the launching thread's stack, inside
 * the API call. weight: 16.16. time: mono. The library's only exported name beside InitializeInjection. */
void gpustrobe_launch_probe(uint64_t correlation, uint64_t weight, uint64_t time, uint64_t window);

#endif
