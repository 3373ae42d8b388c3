// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* The CPU sampler: one sample with its whole stack each time a CPU's cpu-clock event fires.
 *
 * profile -> walk (16 steps, tail-calls itself) [-> guess -> walk] -> [copy_stack] -> [leaf_hint] -> ring. Runs in the timer's hard interrupt; 5.10 is the floor:
 * no bpf_loop, no bpf_for, no CO-RE. The only map update is one per process and wake interval (`asked`). */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "sample.h"
#include "config.h"
#include "python.h"
#include "rules.h"
#include "arch.bpf.h"
#include "maps.bpf.h"
#include "task.bpf.h"
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "GPL";

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

static __always_inline int conclude(struct bpf_perf_event_data *ctx, struct gs_scratch *s, struct gs_cpu_counters *c)
{
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

#include "copy.bpf.h"

SEC("perf_event")
int copy_stack(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_cpu_counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c)
		return 0;
	copy_user_stack(s);
	return conclude(ctx, s, c);
}

static __always_inline int finish(struct bpf_perf_event_data *ctx, struct gs_scratch *s, struct gs_cpu_counters *c)
{
	if (s->end != GS_END_complete)
		push(s, (__u64)GS_END << GS_WORD_SHIFT | s->end);
	s->sample.n_user = s->n - s->sample.n_kernel;
	if ((s->sample.flags & (GS_SAMPLE_NO_TABLE | GS_SAMPLE_STALE_TABLE)) && s->frames && ring_has_room())
		bpf_tail_call(ctx, &programs, GS_PROGRAM_COPY);
	return conclude(ctx, s, c);
}

SEC("perf_event")
int walk(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_cpu_counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c)
		return 0;
	walk_on(ctx, s);
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
	guess_on(ctx, s, c);
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
	if (user_side(in_user ? &ctx->regs : 0, s, task)) {
		bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
		s->end = GS_END_too_deep;
	}
	return finish(ctx, s, c);
}
