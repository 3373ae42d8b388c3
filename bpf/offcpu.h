/* SPDX-License-Identifier: Apache-2.0 */
/* The loaded off-CPU program: an object of its own beside the sampler's, whose process tables, unwind rows and PID filter it shares. */
#ifndef GPUSTROBE_OFFCPU_H
#define GPUSTROBE_OFFCPU_H

#include "kernel.h"
#include "wait.h"

#define GS_MAX_WAITING 16384 /* threads; 2.3 MB */

struct gs_offcpu {
	struct bpf_object *object;
	int link, ring, waiting, counters; /* descriptors; -1: none */
	int n_cpus;
	uint64_t map_bytes;
	uint64_t scheduler, scheduler_end; /* addresses of the kernel's __sched functions; 0, 0 = not known */
	struct gs_wait_counters *per_cpu;
	uint32_t *tids; /* scratch of gs_offcpu_scan */
	struct gs_wait *waits;
};

/* 0, or -1 and *error; *o can be closed either way. */
int gs_offcpu_open(struct gs_offcpu *o, const struct gs_kernel *k, const struct gs_options *options, struct gs_error *error);
int gs_offcpu_attach(struct gs_offcpu *o, struct gs_error *error);
/* Threads that sleep already, after attaching. Where it cannot be done they are seen once they wake. */
void gs_offcpu_find_asleep(struct gs_offcpu *o);
void gs_offcpu_detach(struct gs_offcpu *o);
void gs_offcpu_close(struct gs_offcpu *o);

int gs_offcpu_counters(struct gs_offcpu *o, struct gs_wait_counters *sum); /* 0, or -1: nothing has changed */
/* All threads that have left a CPU, in o->waits: how many. 100 us for 1000 threads. */
uint32_t gs_offcpu_scan(struct gs_offcpu *o);
/* Context switches of all CPUs since boot, by /proc/stat; 0 where it cannot be read. */
uint64_t gs_switches(void);

#endif
