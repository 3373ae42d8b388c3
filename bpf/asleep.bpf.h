/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Threads that slept when profiling began, by one run over all tasks: they may never come back, yet are what an idle machine does.
 * Their waits count from then on. Another process's memory cannot be read here, so of their user stack there is the leaf alone.
 * Task iterators are Linux 5.8, bpf_get_task_stack 5.9. */
#ifndef GPUSTROBE_ASLEEP_BPF_H
#define GPUSTROBE_ASLEEP_BPF_H

#define TRUSTED __attribute__((preserve_access_index))

struct bpf_iter__task {
	void *meta;
	struct task_struct *task;
} TRUSTED;
struct task_struct {
	int on_cpu;
	char comm[16];
} TRUSTED;

#define ASLEEP_KERNEL_WORDS 64

struct gs_asleep {
	struct gs_sample sample;
	__u64 words[128]; /* kernel, user leaf, END, tail */
};

/* Not the scratch of the walks: a switch on this CPU may come in between. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_asleep);
} asleep_scratch SEC(".maps");

static __always_inline void tell_asleep(struct gs_asleep *s, const struct gs_wait *w, struct task_struct *task)
{
	long bytes = config.kernel_stacks ? bpf_get_task_stack(task, s->words, ASLEEP_KERNEL_WORDS * sizeof(__u64), 0) : 0;
	__u32 n = bytes > 0 ? (__u32)bytes / sizeof(__u64) : 0;
	const bpf_user_pt_regs_t *regs = (void *)w->registers;

	if (n > ASLEEP_KERNEL_WORDS)
		n = ASLEEP_KERNEL_WORDS;
	s->sample.time_ns = w->since;
	s->sample.start_boottime = w->start_boottime;
	s->sample.cgroup_id = 0;
	s->sample.value = 1;
	s->sample.tgid = w->tgid;
	s->sample.tid = w->tid;
	__builtin_memcpy(s->sample.comm, w->comm, sizeof(w->comm));
	s->sample.cpu = 0;
	s->sample.n_kernel = n;
	s->sample.n_user = 0;
	s->sample.flags = GS_SAMPLE_WAIT | (w->kthread ? GS_SAMPLE_KTHREAD : GS_SAMPLE_NO_TABLE);
	if (regs) {
		s->words[n++ & 127] = kernel_u64((__u64)&REGS_PC(regs)) & ((1ULL << GS_WORD_SHIFT) - 1);
		s->words[n++ & 127] = (__u64)GS_END << GS_WORD_SHIFT | GS_END_asleep_before;
		s->sample.n_user = 2;
	}
	s->words[n++ & 127] = w->since;
	s->words[n++ & 127] = w->site | (__u64)w->kind << 32 | (__u64)GS_WAIT_ASLEEP << 40;
	bpf_ringbuf_output(&samples, s, sizeof(s->sample) + (n & 127) * sizeof(__u64), BPF_RB_NO_WAKEUP);
}

SEC("iter/task")
int asleep(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u64 at = (__u64)task, now = bpf_ktime_get_ns();
	struct gs_wait fresh = {}, *w;
	struct gs_asleep *s;
	__u32 zero = 0, tid, tgid, state;

	s = bpf_map_lookup_elem(&asleep_scratch, &zero);
	if (!task || !s)
		return 0;
	tid = kernel_u64(at + config.offset.task_struct_pid);
	tgid = kernel_u64(at + config.offset.task_struct_tgid);
	state = kernel_u64(at + config.task_state);
	if (!tid || !state || (state & TASK_DEAD) || task->on_cpu)
		return 0;
	__u64 registers = config.task_pt_regs ? bpf_task_pt_regs(task) :
						kernel_u64(at + config.offset.task_struct_stack) + config.offset.pt_regs;

	if (!identify(&fresh, at, (__u64)tgid << 32 | tid, registers, now))
		return 0;
	bpf_probe_read_kernel(fresh.comm, sizeof(fresh.comm), task->comm);
	fresh.since = now;
	fresh.kind = kind_of(false, state);
	find_site(&fresh);
	if (bpf_map_update_elem(&waiting, &tid, &fresh, BPF_NOEXIST))
		return 0; /* it has left a CPU meanwhile */
	w = bpf_map_lookup_elem(&waiting, &tid);
	if (w && (task->on_cpu || !(__u32)kernel_u64(at + config.task_state)))
		w->since = 0; /* woken meanwhile: its next wait is the first */
	else
		tell_asleep(s, &fresh, task);
	return 0;
}

#endif
