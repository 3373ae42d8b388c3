/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the program on the injected library's probe and user side share. */
#ifndef GPUSTROBE_LAUNCH_H
#define GPUSTROBE_LAUNCH_H

/* Follows the words of each launch's stack (GS_SAMPLE_LAUNCH): the probe's two arguments. */
struct gs_launch_tail {
	__u32 correlation; /* CUPTI's, of the process's launch */
	__u32 weight;      /* 16.16: launches this stack stands for */
};

/* One per CPU. entered = filtered + scratch_busy + ring_full + walked. */
struct gs_launch_counters {
	__u64 entered;
	__u64 filtered;
	__u64 scratch_busy; /* a thread of another launch was preempted in its walk on this CPU */
	__u64 ring_full;
	__u64 walked;
	__u64 frames;
};

_Static_assert(sizeof(struct gs_launch_tail) == 8, "one word");

#endif
