// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/* What bench/ compares the sampler with: a plain sampler that lets the kernel take kernel and user stack, by frame pointers,
 * and puts them into a ring. Never loaded by the agent. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct plain_sample {
	__u64 id;
	char comm[16];
	__u64 kernel[127];
	__u64 user[127]; /* the kernel's own limit, perf_event_max_stack */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plain_sample);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 23);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[2]); /* samples, user frames */
} counts SEC(".maps");

SEC("perf_event")
int plain(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct plain_sample *s = bpf_map_lookup_elem(&scratch, &zero);
	__u64 *count = bpf_map_lookup_elem(&counts, &zero);
	__u64 id = bpf_get_current_pid_tgid();

	if (!s || !count || !(id >> 32))
		return 0;
	s->id = id;
	bpf_get_current_comm(s->comm, sizeof(s->comm));

	long kernel = bpf_get_stack(ctx, s->kernel, sizeof(s->kernel), 0);
	long user = bpf_get_stack(ctx, s->user, sizeof(s->user), BPF_F_USER_STACK);

	if (user < 0)
		user = 0;
	if (user > (long)sizeof(s->user))
		user = sizeof(s->user);
	count[0]++;
	count[1] += user / 8;
	bpf_ringbuf_output(&samples, s, sizeof(*s) - sizeof(s->user) + user, BPF_RB_NO_WAKEUP);
	return kernel < 0 ? 0 : 1;
}
