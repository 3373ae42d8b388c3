/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Where threads wait: at each context switch, how long the thread that comes was away, and the stack of the one that leaves.
 *
 * Runs in the scheduler with interrupts off, so it has maps of its own beside those it shares with the sampler (kernel.c), and
 * walks only while budgets last (wait.h). A raw tracepoint: no tracefs, 4.17. Its fourth argument, the state of the task that
 * leaves, is not there in all kernels since 5.10, so the state is read: it cannot have become TASK_RUNNING by then, since a
 * waker on another CPU waits for the task to be off this one. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "sample.h"
#include "config.h"
#include "python.h"
#include "rules.h"
#include "wait.h"
#include "arch.bpf.h"
#include "maps.bpf.h"
#include "task.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* include/linux/sched.h, the same since 4.14 */
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_STOPPED_OR_TRACED 0x000c
#define TASK_DEAD 0x0080
#define TASK_NOLOAD 0x0400 /* with UNINTERRUPTIBLE: an idle kernel thread */

#define SITE_KERNEL 1    /* so that no site is 0 */
#define SITE_PREEMPTED 2 /* anywhere: its pc says nothing about how long */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_wait);
} waiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_wait_counters);
} wait_counters SEC(".maps");

struct wait_end {
	struct gs_sample sample;
	struct gs_wait_tail tail;
};

/* A thread waits at the same place while its user registers stay as they were saved: also once it is no longer current. */
static __always_inline void find_site(struct gs_wait *w)
{
	const bpf_user_pt_regs_t *regs = (void *)w->registers;

	if (w->site)
		return;
	w->site = SITE_KERNEL;
	if (regs)
		w->site |= (kernel_u64((__u64)&REGS_PC(regs)) ^ kernel_u64((__u64)&REGS_SP(regs)) << 20) * 0x9E3779B97F4A7C15ULL >> 32;
}

static __always_inline __u8 *score_of(struct gs_wait *w)
{
	return &w->score[(w->site ^ w->site >> 16) >> 2 & (GS_WAIT_SLOTS - 1)];
}

/* Waits at this place: long ones make the next be walked for certain, brief ones wear that off. A thread that never waits long
 * never pays for finding out where. */
static __always_inline void learn(struct gs_wait *w, bool is_long)
{
	__u8 *score;

	if (!is_long && !w->scores)
		return;
	find_site(w);
	score = score_of(w);
	if (is_long)
		*score = 4;
	else if (*score)
		*score -= 1;
}

static __always_inline void submit_end(struct gs_wait *w, struct gs_wait_counters *c, __u64 now)
{
	struct wait_end *e = bpf_ringbuf_reserve(&samples, sizeof(*e), 0);

	if (!e) {
		c->ring_full++;
		return;
	}
	e->sample.time_ns = now;
	e->sample.start_boottime = w->start_boottime;
	e->sample.cgroup_id = w->cgroup_id;
	e->sample.value = now - w->since;
	e->sample.tgid = w->tgid;
	e->sample.tid = w->tid;
	__builtin_memcpy(e->sample.comm, w->comm, sizeof(w->comm));
	e->sample.cpu = bpf_get_smp_processor_id();
	e->sample.n_kernel = 0;
	e->sample.n_user = 0;
	e->sample.flags = GS_SAMPLE_WAIT_END | (w->kthread ? GS_SAMPLE_KTHREAD : 0);
	e->tail.since = w->since;
	e->tail.site = w->site;
	e->tail.kind = w->kind;
	e->tail.walked = w->walked;
	e->tail.pad = 0;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	c->ended++;
}

static __always_inline void comes(__u64 next, struct gs_wait_counters *c, __u64 now)
{
	__u32 tid = kernel_u64(next + config.offset.task_struct_pid);
	struct gs_wait *w;

	if (!tid) {
		c->idle++;
		return;
	}
	w = bpf_map_lookup_elem(&waiting, &tid);
	if (!w || !w->since) {
		c->unseen++;
		c->left_unseen += !!w;
		return;
	}
	bool is_long = now - w->since >= config.wait_threshold_us * 1000ULL;

	learn(w, is_long);
	if (is_long)
		submit_end(w, c, now);
	else
		c->brief++;
	w->since = 0;
}

/* Who it is; false where it is not to be watched. */
static __always_inline bool identify(struct gs_wait *w, __u64 task, __u64 host, __u64 registers, __u64 now)
{
	__u64 leader = kernel_u64(task + config.offset.task_struct_group_leader), id = host;

	w->start_boottime = kernel_u64(leader + config.offset.task_struct_start_boottime);
	w->refilled = now;
	w->host_tgid = host >> 32;
	w->budget = GS_WAIT_THREAD_BURST;
	w->kthread = !!(kernel_u64(task + config.offset.task_struct_flags) & (PF_KTHREAD | PF_IO_WORKER));
	w->registers = w->kthread ? 0 : registers;
	if (config.pid_namespace)
		id = (__u64)visible_pid(leader) << 32 | visible_pid(task);
	w->tgid = id >> 32;
	w->tid = id;
	return w->tgid && (!config.filter || is_watched(w->tgid, w->start_boottime));
}

/* A thread that leaves for the first time: its entry, or NULL where it is not to be watched, or there is no room. */
static __always_inline struct gs_wait *enter(__u64 task, __u64 host, struct gs_wait_counters *c, __u64 now)
{
	struct gs_wait fresh = {};
	__u32 tid = host;

	if (!identify(&fresh, task, host, registers_at(task), now))
		return 0;
	fresh.cgroup_id = bpf_get_current_cgroup_id();
	bpf_get_current_comm(fresh.comm, sizeof(fresh.comm));
	if (bpf_map_update_elem(&waiting, &tid, &fresh, BPF_ANY)) {
		c->no_room++;
		return 0;
	}
	return bpf_map_lookup_elem(&waiting, &tid);
}

static __always_inline __u8 kind_of(bool preempted, __u32 state)
{
	if (preempted || !state)
		return GS_WAIT_preempted;
	if (state & TASK_STOPPED_OR_TRACED)
		return GS_WAIT_stopped;
	return (state & TASK_UNINTERRUPTIBLE) && !(state & TASK_NOLOAD) ? GS_WAIT_disk : GS_WAIT_sleep;
}

static __always_inline __u64 refill(__u64 budget, __u64 burst, __u64 *refilled, __u64 interval, __u64 now)
{
	if (budget >= burst || now - *refilled < interval)
		return budget;
	budget += (now - *refilled) / interval;
	*refilled = now;
	return budget < burst ? budget : burst;
}

static __always_inline bool has_budget(struct gs_wait *w, struct gs_wait_counters *c, __u64 now)
{
	w->budget = refill(w->budget, GS_WAIT_THREAD_BURST, &w->refilled, GS_WAIT_THREAD_INTERVAL, now);
	if (w->budget <= GS_WAIT_THREAD_BURST / 2) {
		if (!w->budget || !w->scores)
			return false;
		find_site(w);
		if (!*score_of(w))
			return false;
	}
	c->budget = refill(c->budget, GS_WAIT_CPU_BURST, &c->refilled, GS_WAIT_CPU_INTERVAL, now);
	if (!c->budget)
		return false;
	find_site(w);
	if (c->budget <= GS_WAIT_CPU_BURST / 2 && w->site == w->walked_site)
		return false;
	w->walked_site = w->site;
	w->budget--;
	c->budget--;
	return true;
}

#include "copy.bpf.h"

static __always_inline int submit_stack(struct gs_scratch *s, struct gs_wait_counters *c)
{
	s->wake = (s->sample.flags & (GS_SAMPLE_NO_TABLE | GS_SAMPLE_STALE_TABLE | GS_SAMPLE_UNRESOLVED)) && ask(s) != ASK_NOT;
	push(s, s->tail[0]);
	push(s, s->tail[1]);
	__u32 n = s->n & GS_WORD_MASK;

	if (bpf_ringbuf_output(&samples, &s->sample, sizeof(s->sample) + n * sizeof(__u64), s->wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP))
		c->stack_lost++;
	else
		c->walked++;
	c->frames += s->frames;
	s->in_use = 0;
	return 0;
}

SEC("raw_tracepoint/sched_switch")
int copy_wait(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_wait_counters *c = bpf_map_lookup_elem(&wait_counters, &zero);

	if (!s || !c)
		return 0;
	copy_user_stack(s);
	return submit_stack(s, c);
}

static __always_inline int finish_walk(struct bpf_raw_tracepoint_args *ctx, struct gs_scratch *s, struct gs_wait_counters *c)
{
	if (s->end != GS_END_complete)
		push(s, (__u64)GS_END << GS_WORD_SHIFT | s->end);
	s->sample.n_user = s->n - s->sample.n_kernel;
	if ((s->sample.flags & (GS_SAMPLE_NO_TABLE | GS_SAMPLE_STALE_TABLE)) && s->frames && ring_has_room())
		bpf_tail_call(ctx, &programs, GS_PROGRAM_COPY);
	return submit_stack(s, c);
}

SEC("raw_tracepoint/sched_switch")
int walk_wait(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_wait_counters *c = bpf_map_lookup_elem(&wait_counters, &zero);

	if (!s || !c)
		return 0;
	walk_on(ctx, s);
	return finish_walk(ctx, s, c);
}

SEC("raw_tracepoint/sched_switch")
int guess_wait(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_wait_counters *c = bpf_map_lookup_elem(&wait_counters, &zero);
	struct gs_cpu_counters *guesses = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c || !guesses)
		return 0;
	guess_on(ctx, s, guesses);
	return finish_walk(ctx, s, c);
}

static __always_inline int begin_walk(struct bpf_raw_tracepoint_args *ctx, struct gs_scratch *s, struct gs_wait *w, __u64 task,
				      struct gs_wait_counters *c)
{
	long bytes = 0;

	s->in_use = 1;
	w->walked = 1;
	fill_header(s, (__u64)w->tgid << 32 | w->tid, w->start_boottime);
	__builtin_memcpy(w->comm, s->sample.comm, sizeof(w->comm));
	w->cgroup_id = s->sample.cgroup_id;
	s->sample.flags = GS_SAMPLE_WAIT;
	s->tail[0] = w->since;
	s->tail[1] = w->site | (__u64)w->kind << 32 | 1ULL << 40;
	if (config.kernel_stacks)
		bytes = bpf_get_stack(ctx, s->words, GS_MAX_KERNEL_WORDS * sizeof(__u64), 0);
	if (bytes > 0 && bytes <= GS_MAX_KERNEL_WORDS * sizeof(__u64)) {
		s->sample.n_kernel = bytes / sizeof(__u64);
		s->n = s->sample.n_kernel;
	}
	if (user_side(0, s, task)) {
		bpf_tail_call(ctx, &programs, GS_PROGRAM_WALK);
		s->end = GS_END_too_deep;
	}
	return finish_walk(ctx, s, c);
}

static __always_inline int leaves(struct bpf_raw_tracepoint_args *ctx, struct gs_wait_counters *c, __u64 now)
{
	__u64 task = ctx->args[1], id = bpf_get_current_pid_tgid();
	__u32 zero = 0, tid = id, state;
	struct gs_scratch *s;
	struct gs_wait *w;

	if (!tid)
		return 0;
	w = bpf_map_lookup_elem(&waiting, &tid);
	state = kernel_u64(task + config.task_state);
	if (!ctx->args[0] && (state & TASK_DEAD)) {
		if (w)
			bpf_map_delete_elem(&waiting, &tid);
		return 0;
	}
	if (!w || w->host_tgid != id >> 32)
		w = enter(task, id, c, now);
	if (!w)
		return 0;
	c->came_unseen += !!w->since;
	w->kind = kind_of(ctx->args[0], state);
	w->site = w->kind == GS_WAIT_preempted ? SITE_PREEMPTED : 0;
	w->walked = 0;
	w->since = now;
	if (!has_budget(w, c, now)) {
		c->unwalked++;
		return 0;
	}
	if (bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(&samples, BPF_RB_RING_SIZE) / 4 * 3) {
		c->stack_lost++; /* the ends of waits need the rest: without them time is lost, not a stack */
		return 0;
	}
	s = bpf_map_lookup_elem(&scratch, &zero);
	if (!s || s->in_use) {
		c->scratch_busy++;
		return 0;
	}
	return begin_walk(ctx, s, w, task, c);
}

SEC("raw_tracepoint/sched_switch")
int off_cpu(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	struct gs_wait_counters *c = bpf_map_lookup_elem(&wait_counters, &zero);
	__u64 now = bpf_ktime_get_ns();

	if (!c)
		return 0;
	c->entered++;
	comes(ctx->args[2], c, now);
	return leaves(ctx, c, now);
}

#include "asleep.bpf.h"
