/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The current task as each of our programs looks at it: who it is, where its stack begins, which process table it has. */
#ifndef GPUSTROBE_TASK_BPF_H
#define GPUSTROBE_TASK_BPF_H

static __always_inline __u64 kernel_u64(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

#include "unwind.bpf.h"

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000

/* Where the current task's user registers were saved on entry to the kernel: the same place all its life. */
static __always_inline __u64 registers_at(__u64 task)
{
	if (config.task_pt_regs)
		return bpf_task_pt_regs(bpf_get_current_task_btf());
	return kernel_u64(task + config.offset.task_struct_stack) + config.offset.pt_regs;
}

static __always_inline bool saved_registers(bpf_user_pt_regs_t *regs, __u64 task)
{
	return bpf_probe_read_kernel(regs, sizeof(*regs), (void *)registers_at(task)) == 0 && REGS_USER(regs);
}

static __always_inline void start_walk(struct gs_scratch *s, bpf_user_pt_regs_t *regs)
{
	s->pc = REGS_PC(regs);
	s->sp = REGS_SP(regs);
	s->fp = REGS_FP(regs);
	s->leaf = s->pc;
	REGS_COPY(s->registers, regs);
	if (!REGS_64BIT(regs))
		s->fp = 0; /* 4-byte frames: the leaf alone, with END(frame_pointer) */
}

/* Trust the process's table only while its three stamp fields hold (UNWIND.md section 3 tells what they miss). */
static __always_inline void find_table(struct gs_scratch *s, __u64 mm)
{
	struct gs_process *p = bpf_map_lookup_elem(&procs, &s->sample.tgid);

	if (!p) {
		s->sample.flags |= GS_SAMPLE_NO_TABLE;
		return;
	}
	if (p->start_boottime != s->sample.start_boottime ||
	    p->exec_vm != kernel_u64(mm + config.offset.mm_struct_exec_vm) ||
	    p->start_stack != kernel_u64(mm + config.offset.mm_struct_start_stack)) {
		s->sample.flags |= GS_SAMPLE_STALE_TABLE;
		return;
	}
	s->start_stack = p->start_stack;
	s->first = p->first;
	s->count = p->count;
}

/* Fills in where the user stack starts; false where there is none to walk. interrupted: NULL where the task is in the kernel. */
static __always_inline bool user_side(bpf_user_pt_regs_t *interrupted, struct gs_scratch *s, __u64 task)
{
	__u32 flags = kernel_u64(task + config.offset.task_struct_flags);
	__u64 mm = kernel_u64(task + config.offset.task_struct_mm);

	if ((flags & (PF_KTHREAD | PF_IO_WORKER)) || (!mm && !(flags & PF_EXITING))) {
		s->sample.flags |= GS_SAMPLE_KTHREAD;
		return false;
	}
	if (!mm) {
		s->end = GS_END_exiting;
		return false;
	}
	find_table(s, mm);
	start_python(s, task);
	if (interrupted) {
		start_walk(s, interrupted);
	} else {
		bpf_user_pt_regs_t regs;

		if (!saved_registers(&regs, task)) {
			s->end = GS_END_no_registers;
			return false;
		}
		start_walk(s, &regs);
	}
	return true;
}

/* The first sample of a PID given by number tells which process it means; one that gets the number later is another. */
static __always_inline bool is_watched(__u32 tgid, __u64 start_boottime)
{
	__u64 *since = bpf_map_lookup_elem(&watched, &tgid);

	if (since && !*since)
		*since = start_boottime;
	return since && *since == start_boottime;
}

/* struct upid: int nr; struct pid_namespace *ns */
#define UPID_BYTES 16
#define MAX_PID_LEVELS 8 /* of 32 the kernel allows; a container in a container is level 2 */

/* The number of a task in the PID namespace whose /proc the agent reads; 0 = it is not to be seen there. */
static __always_inline __u32 visible_pid(__u64 task)
{
	__u64 pid = kernel_u64(task + config.offset.task_struct_thread_pid);
	__u32 level = kernel_u64(pid + config.offset.pid_level);

	for (int i = 0; i < MAX_PID_LEVELS && i <= level; i++) {
		__u64 at = pid + config.offset.pid_numbers + i * UPID_BYTES;
		__u64 ns = kernel_u64(at + 8);

		if ((__u32)kernel_u64(ns + config.offset.pid_namespace_ns + config.offset.ns_common_inum) == config.pid_namespace)
			return kernel_u64(at);
	}
	return 0;
}

static __always_inline void fill_header(struct gs_scratch *s, __u64 id, __u64 start_boottime)
{
	s->sample.time_ns = bpf_ktime_get_ns();
	s->sample.start_boottime = start_boottime;
	s->sample.cgroup_id = bpf_get_current_cgroup_id();
	s->sample.value = 1;
	s->sample.tgid = id >> 32;
	s->sample.tid = id;
	bpf_get_current_comm(s->sample.comm, sizeof(s->sample.comm));
	s->sample.cpu = bpf_get_smp_processor_id();
	s->sample.n_kernel = 0;
	s->sample.n_user = 0;
	s->sample.flags = 0;
	s->n = 0;
	s->frames = 0;
	s->tails = 0;
	s->is_return = 0;
	s->end = GS_END_complete;
	s->first = 0;
	s->count = 0;
	s->map_start = 0;
	s->map_end = 0;
	s->mode = MODE_NATIVE;
	s->failed = 0;
	s->start_stack = 0;
	s->by_fp = 0;
	s->unproven = 0;
	s->guessed = 0;
	s->guesses = 0;
	s->python.n = 0;
	s->python.frame = 0;
}

/* The walk program's part that all share: 16 steps, then this program again, or the one that guesses. Returns when the walk is over. */
static __always_inline void walk_on(void *ctx, struct gs_scratch *s)
{
	int result = unwind(s);

	if (result == GUESS && s->guesses < GS_MAX_GUESSES && s->tails + 1 < GS_MAX_TAILS) {
		s->guesses++;
		s->tails++;
		bpf_tail_call(ctx, &programs, GS_PROGRAM_GUESS);
	}
	if (result == GUESS) {
		s->mode = MODE_OVER;
		s->end = GS_END_frame_pointer;
	}
	if (result != STOP) {
		if (s->tails < GS_MAX_TAILS) {
			s->tails++;
			bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
		}
		s->end = GS_END_too_deep;
	}
}

static __always_inline void guess_on(void *ctx, struct gs_scratch *s, struct gs_cpu_counters *c)
{
	s->end = GS_END_complete; /* a frame pointer may have failed */
	if (!guess_run(s, c)) {
		c->guess_failed++;
		s->mode = MODE_OVER;
		s->end = GS_END_frame_pointer;
	}
	s->tails++;
	bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
	s->end = GS_END_too_deep;
}

enum { ASK_NOT, ASK_AGAIN, ASK_FIRST };

/* Whether this sample may wake the agent: the first of a process at once, later ones once per wake interval. */
static __always_inline int ask(struct gs_scratch *s)
{
	struct gs_asked *asked = bpf_map_lookup_elem(&asks, &s->sample.tgid);

	if (asked && asked->start_boottime == s->sample.start_boottime) {
		if (s->sample.time_ns - asked->time_ns < config.wake_interval_ms * 1000000ULL)
			return ASK_NOT;
		asked->time_ns = s->sample.time_ns;
		return ASK_AGAIN;
	}
	struct gs_asked first = { s->sample.start_boottime, s->sample.time_ns };

	bpf_map_update_elem(&asks, &s->sample.tgid, &first, BPF_ANY);
	return ASK_FIRST;
}

#endif
