/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that wait: their stacks as they were taken, and how much of each wait is accounted for already.
 *
 * A wait is shown as it passes: at the end of each window every thread that still waits adds its part of that window (kernel
 * threads every 10 s), at the end of the wait the rest. So a second never holds more than a second of a thread, save where the
 * drain was late. */
#ifndef GPUSTROBE_WAITS_H
#define GPUSTROBE_WAITS_H

#include "offcpu.h"
#include "sample.h"
#include "window.h"

struct gs_core;
struct gs_waiter;

struct gs_waits {
	struct gs_offcpu kernel;
	struct gs_waiter **buckets;
	uint32_t n;      /* threads */
	uint32_t listed; /* processes, for threads asleep since before, in this window */
	uint64_t bytes;  /* of their stacks */
	uint64_t threshold; /* ns */
	struct gs_window_rows rows; /* of the running window */
	struct gs_books books;
	struct gs_wait_counters booked; /* kernel counts already in some window's books */
	uint64_t owed; /* threads without room whose next switch-in is still to be booked */
	uint64_t first_switches, first_entered, last_switches;
	int64_t skipped_seen, skipped_booked;
	uint64_t shown, by_site, without_stack;
	struct gs_sample sample; /* scratch: the stack at hand */
	uint64_t words[GS_MAX_KERNEL_WORDS + GS_MAX_USER_WORDS + 1 + sizeof(struct gs_stack_copy) / 8 + GS_STACK_WORDS];
};

/* NULL and *error. With GS_OPTION_NO_KERNEL nothing is loaded. */
struct gs_waits *gs_waits_open(struct gs_core *core, const struct gs_options *options, struct gs_error *error);
int gs_waits_start(struct gs_waits *w, struct gs_error *error);
void gs_waits_stop(struct gs_waits *w); /* nothing new comes; what is in the ring is still to be drained */
void gs_waits_close(struct gs_waits *w);

/* One record of the ring, of whatever content. */
void gs_waits_record(struct gs_core *core, const void *data, uint64_t length);
/* At the end of a window, before it is queued: threads that wait still, and the books. */
void gs_waits_end_window(struct gs_core *core, int from_kernel, int last);

#endif
