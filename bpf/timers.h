/* SPDX-License-Identifier: Apache-2.0 */
/* One cpu-clock perf event per online CPU. Always the software clock: a hardware event samples in NMI, and NMI plus
 * sched_switch on one ring froze 6.15+ kernels for 250 ms at a time. */
#ifndef GPUSTROBE_TIMERS_H
#define GPUSTROBE_TIMERS_H

#include "core.h"

/* The period is a shade under 1/Hz, no round number, so it sweeps through whatever works in steps of 10 ms. */
#define GS_PERIOD_SHARE 0.9973013

struct gs_timer {
	int fd;         /* -1: none */
	int online;
	uint64_t ended; /* ns counted by descriptors of this CPU that are closed */
};

struct gs_timers {
	struct gs_timer *cpus; /* by CPU number */
	int n_cpus;            /* possible */
	int n_open;
	int program;
	uint64_t period; /* ns */
};

uint64_t gs_period(uint32_t hz);
/* 0, or -1 and *error. CPUs start staggered across one period. */
int gs_timers_open(struct gs_timers *t, int program, uint32_t hz, struct gs_error *error);
/* Gives CPUs that came online an event; cheap when nothing changed. */
void gs_timers_follow(struct gs_timers *t);
/* Periods that have passed on a CPU since open, by its event's own count. */
uint64_t gs_timers_produced(struct gs_timers *t, int cpu);
/* No event fires after this; counts stay readable. */
void gs_timers_disable(struct gs_timers *t);
void gs_timers_close(struct gs_timers *t);

/* Idle ns of each CPU since boot, I/O wait included, from /proc/stat in steps of 10 ms; 0, or -1 if it cannot be read. */
int gs_idle_times(uint64_t *idle_ns, int n_cpus);

#endif
