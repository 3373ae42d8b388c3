// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The CPU sampler: one sample with its whole stack each time a CPU's cpu-clock event fires.
 *
 * profile -> walk (16 steps, tail-calls itself) -> [leaf_hint] -> ring. Runs in the timer's hard interrupt; 5.10 is the floor:
 * no bpf_loop, no bpf_for, no CO-RE. The only map update is one per process and wake interval (`asked`). */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "sample.h"
#include "config.h"
#include "python.h"
#include "rules.h"
#include "arch.bpf.h"
#include "maps.bpf.h"

static __always_inline __u64 kernel_u64(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

#include "unwind.bpf.h"
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000

/* The user registers of a task that is in the kernel, as saved on entry. */
static __always_inline bool saved_registers(bpf_user_pt_regs_t *regs, __u64 task)
{
	__u64 at;

	if (config.task_pt_regs)
		at = bpf_task_pt_regs(bpf_get_current_task_btf());
	else
		at = kernel_u64(task + config.offset.task_struct_stack) + config.offset.pt_regs;
	return bpf_probe_read_kernel(regs, sizeof(*regs), (void *)at) == 0 && REGS_USER(regs);
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
	s->first = p->first;
	s->count = p->count;
}

/* Fills in where the user stack starts; false where there is none to walk. */
static __always_inline bool user_side(struct bpf_perf_event_data *ctx, struct gs_scratch *s, __u64 task, bool in_user)
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
	if (in_user) {
		start_walk(s, &ctx->regs);
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
	s->by_fp = 0;
	s->unproven = 0;
	s->guessed = 0;
	s->guesses = 0;
	s->python.n = 0;
	s->python.frame = 0;
}

static __always_inline void kernel_side(struct bpf_perf_event_data *ctx, struct gs_scratch *s)
{
	long bytes = bpf_get_stack(ctx, s->words, GS_MAX_KERNEL_WORDS * sizeof(__u64), 0);

	if (bytes > 0 && bytes <= GS_MAX_KERNEL_WORDS * sizeof(__u64)) {
		s->sample.n_kernel = bytes / sizeof(__u64);
		s->n = s->sample.n_kernel;
	}
}

static __always_inline void submit(struct gs_scratch *s, struct gs_cpu_counters *c)
{
	__u32 n = s->n & GS_WORD_MASK;
	long failed = bpf_ringbuf_output(&samples, &s->sample, sizeof(s->sample) + n * sizeof(__u64),
					 s->wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);

	c->frames += s->frames;
	if (failed)
		c->ring_full++;
	else
		c->delivered++;
	if (s->wake)
		c->wakeups++;
	s->in_use = 0;
}

#include "hint.bpf.h"

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

static __always_inline int finish(struct bpf_perf_event_data *ctx, struct gs_scratch *s, struct gs_cpu_counters *c)
{
	if (s->end != GS_END_complete)
		push(s, (__u64)GS_END << GS_WORD_SHIFT | s->end);
	s->sample.n_user = s->n - s->sample.n_kernel;
	s->wake = 0;
	if (s->sample.flags & (GS_SAMPLE_NO_TABLE | GS_SAMPLE_STALE_TABLE | GS_SAMPLE_UNRESOLVED)) {
		int asked = ask(s);

		s->wake = asked != ASK_NOT;
		if (config.leaf_hint && asked == ASK_FIRST && s->frames)
			bpf_tail_call(ctx, &programs, GS_PROGRAM_HINT);
	}
	submit(s, c);
	return 0;
}

SEC("perf_event")
int walk(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_cpu_counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c)
		return 0;
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
	return finish(ctx, s, c);
}

SEC("perf_event")
int guess(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_cpu_counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c)
		return 0;
	s->end = GS_END_complete; /* a frame pointer may have failed */
	if (guess_caller(s)) {
		c->guessed += s->guessed;
	} else {
		c->guess_failed++;
		s->mode = MODE_OVER;
		s->end = GS_END_frame_pointer;
	}
	s->tails++;
	bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
	s->end = GS_END_too_deep;
	return finish(ctx, s, c);
}

SEC("perf_event")
int profile(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct gs_cpu_counters *c = bpf_map_lookup_elem(&counters, &zero);
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	__u64 id = bpf_get_current_pid_tgid();

	if (!s || !c)
		return 0;
	c->entered++;
	if (!(id >> 32)) {
		c->idle++;
		return 0;
	}
	__u64 task = bpf_get_current_task();
	__u64 leader = kernel_u64(task + config.offset.task_struct_group_leader);
	__u64 start_boottime = kernel_u64(leader + config.offset.task_struct_start_boottime);

	if (config.pid_namespace)
		id = (__u64)visible_pid(leader) << 32 | visible_pid(task);
	if (!(id >> 32)) {
		c->filtered++;
		return 0;
	}
	if (config.filter && !is_watched(id >> 32, start_boottime)) {
		c->filtered++;
		return 0;
	}
	if (s->in_use) {
		c->scratch_busy++;
		return 0;
	}
	s->in_use = 1;
	fill_header(s, id, start_boottime);

	bool in_user = REGS_USER(&ctx->regs);

	if (!in_user && config.kernel_stacks)
		kernel_side(ctx, s);
	if (user_side(ctx, s, task, in_user)) {
		bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
		s->end = GS_END_too_deep;
	}
	return finish(ctx, s, c);
}
