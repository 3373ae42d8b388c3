/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What bpf/offcpu.bpf.c and user side share about waits: times off the CPU.
 *
 * Every wait of at least the threshold is timed, exactly. Its stack costs 5 to 20 us, so it is walked as the thread leaves the CPU
 * only while budgets last: per thread, and per CPU. A wait that was not walked is shown with the stack of the thread's latest
 * walked wait at the same place (user pc and sp), else with the reason GS_END_wait_unwalked. docs/decisions/off-cpu.md. */
#ifndef GPUSTROBE_WAIT_H
#define GPUSTROBE_WAIT_H

/* X(name, what a person reads). Label `wait`. */
#define GS_WAIT_KINDS(X) \
	X(none, "on a CPU") \
	X(sleep, "waits for something, can be interrupted") \
	X(disk, "waits uninterruptibly: disk, page, lock of the kernel") \
	X(preempted, "could run, but another thread had the CPU") \
	X(stopped, "stopped by a signal or a debugger")
enum gs_wait_kind {
#define X(name, text) GS_WAIT_##name,
	GS_WAIT_KINDS(X)
#undef X
};

#define GS_WAIT_SLOTS 8
/* Walks of one thread: 100 a second, 32 at once. Half of them are kept for places where waits are known to be long. */
#define GS_WAIT_THREAD_INTERVAL 10000000ULL
#define GS_WAIT_THREAD_BURST 32
/* Walks on one CPU: 500 a second, 256 at once; at 15 us each 0.75 % of it at most. Half of them are kept for other places than
 * where the thread was last walked. */
#define GS_WAIT_CPU_INTERVAL 2000000ULL
#define GS_WAIT_CPU_BURST 256

/* waiting: HASH, host TID -> a thread that has left a CPU at least once. */
struct gs_wait {
	__u64 since;          /* CLOCK_MONOTONIC ns; 0 = on a CPU */
	__u64 start_boottime; /* of the leader */
	__u64 cgroup_id;
	__u64 refilled;       /* ns, of the budget */
	__u64 registers;      /* kernel address of its user registers; 0 = none */
	__u32 host_tgid;
	__u32 tgid, tid;      /* as /proc shows them */
	__u32 site;           /* where it waits: hash of user pc and sp; 0 = not looked at */
	__u32 walked_site;    /* of its last walk */
	__u8 budget;
	__u8 kind;
	__u8 walked;
	__u8 kthread;
	char comm[16];        /* when it was last walked */
	union {
		__u8 score[GS_WAIT_SLOTS]; /* by site: above 0 where the last waits were long */
		__u64 scores;
	};
};

/* Ends each record of the ring: a stack (GS_SAMPLE_WAIT: header, words, tail), or the end of a wait (GS_SAMPLE_WAIT_END: header
 * without words, its value the ns). */
struct gs_wait_tail {
	__u64 since;
	__u32 site;
	__u8 kind;
	__u8 walked; /* 0, 1, or GS_WAIT_ASLEEP */
	__u16 pad;
};
#define GS_WAIT_ASLEEP 2 /* began before profiling: the leaf alone */

/* One per CPU. entered = idle + unseen + brief + ended + ring_full. */
struct gs_wait_counters {
	__u64 entered;   /* switches */
	__u64 idle;      /* to the idle task */
	__u64 unseen;    /* to a thread not seen leaving: new, filtered, asleep since before, or without room */
	__u64 brief;     /* waits below the threshold */
	__u64 ended;     /* waits of at least the threshold, into the ring */
	__u64 ring_full; /* such waits that found no room there */
	__u64 no_room;   /* threads that found no room in `waiting` */
	__u64 walked;    /* stacks into the ring */
	__u64 unwalked;  /* waits begun without a walk: no budget */
	__u64 stack_lost; /* walked, but the ring had no room */
	__u64 scratch_busy;
	__u64 frames;
	__u64 came_unseen; /* a thread leaves that was thought to be away */
	__u64 left_unseen; /* a thread comes that was thought to be on a CPU */
	__u64 refilled, budget; /* of this CPU */
};

_Static_assert(sizeof(struct gs_wait) == 88 && sizeof(struct gs_wait_tail) == 16, "layouts of both sides");

#endif
