/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a gs_core; shared by core.c (life), drain.c (thread), record.c (one sample) and books.c (end of a window).
 * Everything below `lock` is touched with it held: the draining thread holds it for one drain, take() while it copies. */
#ifndef GPUSTROBE_STATE_H
#define GPUSTROBE_STATE_H

#include <linux/types.h>
#include <pthread.h>

#include "epoch.h"
#include "kernel.h"
#include "launches.h"
#include "mappings.h"
#include "replay.h"
#include "tables.h"
#include "sample.h"
#include "timers.h"
#include "waits.h"
#include "window.h"

#define GS_SECOND 1000000000ULL

struct ring_buffer;

struct gs_core {
	uint32_t flags;
	uint32_t hz;
	struct gs_limits limits;
	struct gs_kernel kernel;
	struct gs_timers timers;
	struct ring_buffer *ring;
	int epoll, timer, stop_event;
	pthread_t thread;
	int started, stopping;

	pthread_mutex_t lock;
	pthread_cond_t ready;
	int stopped;
	struct gs_mappings *mappings;
	struct gs_tables *tables;
	struct gs_epoch *epoch;
	struct gs_window_rows rows; /* of the running window */
	struct gs_waits *waits; /* NULL: off-CPU time is not asked for */
	struct gs_launches *launches; /* NULL: launches are not asked for */
	struct gs_queue queue;
	uint64_t window_start, window_end; /* CLOCK_MONOTONIC */
	uint64_t drain_time;               /* when this drain began */

	struct gs_books books;         /* of the running window: what the core itself counted */
	struct gs_cpu_counters booked; /* kernel counts already in some window's books */
	int64_t skipped_seen, skipped_booked;
	uint64_t *idle_base;  /* of each CPU: idle ns when sampling began */
	uint64_t *idle_extra; /* of each CPU: idle periods without a sample, booked as idle */

	uint64_t delivered, drains, bytes, windows;
	struct gs_process_details details; /* scratch: 14 KB */
	uint64_t replays, replays_complete;
	struct gs_replay replay; /* scratch: 3 KB */
	uint32_t frame_ids[GS_MAX_KERNEL_WORDS + GS_MAX_USER_WORDS + 2];
};

/* record.c: one ring record, of whatever content. */
void gs_record(struct gs_core *core, const void *data, uint64_t length);

/* record.c: ids of a stack and its thread; `wait` is the kind, 0 = a CPU sample. GS_DROP_COUNT, or why there are none. */
enum gs_drop gs_intern(struct gs_core *core, const struct gs_sample *sample, uint64_t bytes, uint32_t wait, uint32_t *stack, uint32_t *thread);
int gs_is_sample(const void *data, uint64_t length); /* record.c: header, and what it says follows */

/* record.c: what /proc said about a process, in core->details; its length without the unused end of the texts, 0 = nothing. */
uint32_t gs_read_compact_details(struct gs_core *core, uint32_t tgid, uint64_t start_boottime);

/* books.c: ends the running window at window_end. from_kernel: the kernel's counts are up to date with what was drained;
 * last: nothing is in flight any more. */
void gs_end_window(struct gs_core *core, int from_kernel, int last);
/* Sets window_start and window_end for a first window. */
void gs_first_window(struct gs_core *core, uint64_t now);

/* drain.c */
void *gs_drain_thread(void *core);
uint64_t gs_now(void); /* CLOCK_MONOTONIC */

#endif
