/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which processes are sampled: PIDs as the agent sees them, the filter, and the children of watched processes. */
#ifndef GPUSTROBE_WATCH_BPF_H
#define GPUSTROBE_WATCH_BPF_H

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

/* With a PID filter and children: a new process of a watched one is watched before it runs for the first time, whatever
 * becomes of its parent. Raw tracepoints need no tracefs. Leaders go when the whole process is released. */
SEC("raw_tracepoint/sched_process_fork")
int watch_child(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0, parent = bpf_get_current_pid_tgid() >> 32;
	__u64 child = ctx->args[1];
	__u32 pid = kernel_u64(child + config.offset.task_struct_pid);
	__u32 tgid = kernel_u64(child + config.offset.task_struct_tgid);
	struct gs_cpu_counters *c;

	if (pid != tgid)
		return 0;
	if (config.pid_namespace) {
		parent = visible_pid(kernel_u64(bpf_get_current_task() + config.offset.task_struct_group_leader));
		tgid = visible_pid(child);
	}
	if (!bpf_map_lookup_elem(&watched, &parent))
		return 0;
	__u64 start_boottime = kernel_u64(child + config.offset.task_struct_start_boottime);

	if (bpf_map_update_elem(&watched, &tgid, &start_boottime, BPF_ANY) && (c = bpf_map_lookup_elem(&counters, &zero)))
		c->watch_full++;
	return 0;
}

/* Runs an RCU grace period after the PID was given up: by then it may be another watched process's. In a PID namespace the
 * task has lost its number there, so entries stay until the filter ends. */
SEC("raw_tracepoint/sched_process_free")
int forget_process(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 task = ctx->args[0];
	__u32 pid = kernel_u64(task + config.offset.task_struct_pid);
	__u32 tgid = kernel_u64(task + config.offset.task_struct_tgid);
	__u64 start_boottime = kernel_u64(task + config.offset.task_struct_start_boottime);
	__u64 *since = bpf_map_lookup_elem(&watched, &tgid);

	if (pid == tgid && since && (!*since || *since == start_boottime) && !config.pid_namespace)
		bpf_map_delete_elem(&watched, &tgid);
	return 0;
}

#endif
