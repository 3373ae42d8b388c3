/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the loader tells the programs before they are verified: one read-only struct, so that branches on it are pruned and
 * helpers newer than the kernel are never seen by its verifier. Offsets come from BTF (bpf/offsets.c), else from BCC
 * (bpf/bcc_offsets.py prints them in the order of this list). */
#ifndef GPUSTROBE_CONFIG_H
#define GPUSTROBE_CONFIG_H

/* X(struct, member), bytes from the start of the struct; members of anonymous structs and unions count as its own */
#define GS_OFFSETS(X) \
	X(task_struct, mm) \
	X(task_struct, stack) \
	X(task_struct, flags) \
	X(task_struct, pid) \
	X(task_struct, tgid) \
	X(task_struct, group_leader) \
	X(task_struct, start_boottime) \
	X(task_struct, thread) \
	X(thread_struct, fsbase) \
	X(mm_struct, exec_vm) \
	X(mm_struct, start_stack) \
	X(task_struct, thread_pid) \
	X(pid, level) \
	X(pid, numbers) \
	X(pid_namespace, ns) \
	X(ns_common, inum)

/* Needed only beside bpf_find_vma, which needs BTF itself. */
#define GS_HINT_OFFSETS(X) \
	X(vm_area_struct, vm_start) \
	X(vm_area_struct, vm_pgoff) \
	X(vm_area_struct, vm_file) \
	X(file, f_inode) \
	X(inode, i_ino) \
	X(inode, i_sb) \
	X(super_block, s_dev)

struct gs_offsets {
#define X(type, member) __u32 type##_##member;
	GS_OFFSETS(X)
	__u32 pt_regs; /* of the user registers from task->stack; used where bpf_task_pt_regs is missing */
	GS_HINT_OFFSETS(X)
#undef X
};

struct gs_config {
	struct gs_offsets offset;
	__u32 filter;        /* sample only the processes in `watched` */
	__u32 kernel_stacks;
	__u32 task_pt_regs;  /* helpers bpf_get_current_task_btf (5.11) and bpf_task_pt_regs (5.15) exist */
	__u32 leaf_hint;     /* the leaf_hint program is loaded (bpf_find_vma, 5.17) */
	__u32 page_shift;
	__u32 pid_namespace; /* inode of the PID namespace that /proc shows, where it is not the host's; 0 = the host's */
	__u32 wake_interval_ms; /* at most one forced wake-up per process in this time */
	__u32 task_state;    /* off-CPU: offset of task_struct.__state (.state before 5.14) */
	__u32 wait_threshold_us; /* off-CPU: shorter waits are only counted */
};

/* One per CPU: entered = idle + filtered + scratch_busy + ring_full + delivered. */
struct gs_cpu_counters {
	__u64 entered;
	__u64 idle;
	__u64 filtered;
	__u64 scratch_busy;
	__u64 ring_full;
	__u64 delivered; /* into the ring */
	__u64 frames;    /* user frames walked */
	__u64 wakeups;
	__u64 guessed;      /* frames found by scanning the stack */
	__u64 guess_failed; /* scans that found none */
	__u64 watch_full; /* a child of a watched process could not be added to `watched` */
};

#endif
