/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The PID filter follows children of watched processes. */
#ifndef GPUSTROBE_WATCH_BPF_H
#define GPUSTROBE_WATCH_BPF_H

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
