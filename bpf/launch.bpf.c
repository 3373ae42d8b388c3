/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Where kernels are launched: the stack of each launch that the injected library picks, at its probe function.
 *
 * An object of its own, as offcpu.bpf.c is: a uprobe can be preempted and interrupted by the sampler, so scratch, ring and tail
 * calls are its own, and only what user side writes is shared. The library picks launches at random and says how many others each
 * stands for, so there is no budget here. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "sample.h"
#include "config.h"
#include "python.h"
#include "rules.h"
#include "launch.h"
#include "arch.bpf.h"
#include "maps.bpf.h"
#include "task.bpf.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_launch_counters);
} launch_counters SEC(".maps");

static __always_inline int submit_launch(struct gs_scratch *s, struct gs_launch_counters *c)
{
	if (s->end != GS_END_complete)
		push(s, (__u64)GS_END << GS_WORD_SHIFT | s->end);
	s->sample.n_user = s->n;
	s->wake = (s->sample.flags & (GS_SAMPLE_NO_TABLE | GS_SAMPLE_STALE_TABLE | GS_SAMPLE_UNRESOLVED)) && ask(s) != ASK_NOT;
	push(s, s->tail[0]);
	__u32 n = s->n & GS_WORD_MASK;

	if (bpf_ringbuf_output(&samples, &s->sample, sizeof(s->sample) + n * sizeof(__u64), s->wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP))
		c->ring_full++;
	else
		c->walked++;
	c->frames += s->frames;
	s->in_use = 0;
	return 0;
}

SEC("uprobe")
int walk_launch(struct pt_regs *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_launch_counters *c = bpf_map_lookup_elem(&launch_counters, &zero);

	if (!s || !c)
		return 0;
	walk_on(ctx, s);
	return submit_launch(s, c);
}

SEC("uprobe")
int guess_launch(struct pt_regs *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_launch_counters *c = bpf_map_lookup_elem(&launch_counters, &zero);
	struct gs_cpu_counters *guesses = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c || !guesses)
		return 0;
	guess_on(ctx, s, guesses);
	return submit_launch(s, c);
}

SEC("uprobe")
int launch(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), task = bpf_get_current_task();
	__u64 leader = kernel_u64(task + config.offset.task_struct_group_leader);
	__u64 start_boottime = kernel_u64(leader + config.offset.task_struct_start_boottime);
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_launch_counters *c = bpf_map_lookup_elem(&launch_counters, &zero);
	bpf_user_pt_regs_t regs;

	if (!s || !c)
		return 0;
	c->entered++;
	if (config.pid_namespace)
		id = (__u64)visible_pid(leader) << 32 | visible_pid(task);
	if (!(id >> 32) || (config.filter && !is_watched(id >> 32, start_boottime))) {
		c->filtered++;
		return 0;
	}
	if (s->in_use) {
		c->scratch_busy++;
		return 0;
	}
	s->in_use = 1;
	fill_header(s, id, start_boottime);
	s->sample.flags = GS_SAMPLE_LAUNCH;
	bpf_probe_read_kernel(&regs, sizeof(regs), ctx);
	s->tail[0] = (__u32)REGS_ARGUMENT1(&regs) | REGS_ARGUMENT2(&regs) << 32;
	if (user_side(&regs, s, task)) {
		bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
		s->end = GS_END_too_deep;
	}
	return submit_launch(s, c);
}
