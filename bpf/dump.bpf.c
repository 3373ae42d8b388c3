/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* `gpustrobe dump`: user registers and kernel stack of each thread of a process, without stopping it. A thread that is not on a
 * CPU has its user registers where it entered the kernel; walking its user stack is user side's work (agent/dump.py).
 * Task iterators are Linux 5.8, bpf_get_task_stack 5.9, bpf_task_pt_regs 5.15. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

#include "dump.h"

#define TRUSTED __attribute__((preserve_access_index))

struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
} TRUSTED;
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} TRUSTED;
struct task_struct {
	int on_cpu;
	int pid;
	int tgid;
	char comm[16];
} TRUSTED;

const volatile __u32 target;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_dump_thread);
} scratch SEC(".maps");

#if defined(__TARGET_ARCH_x86)
/* Registers by their DWARF numbers. */
static __always_inline void copy_registers(struct gs_dump_thread *thread, const struct pt_regs *regs)
{
	thread->pc = regs->ip;
	thread->registers[0] = regs->ax;
	thread->registers[1] = regs->dx;
	thread->registers[2] = regs->cx;
	thread->registers[3] = regs->bx;
	thread->registers[4] = regs->si;
	thread->registers[5] = regs->di;
	thread->registers[6] = regs->bp;
	thread->registers[7] = regs->sp;
	thread->registers[8] = regs->r8;
	thread->registers[9] = regs->r9;
	thread->registers[10] = regs->r10;
	thread->registers[11] = regs->r11;
	thread->registers[12] = regs->r12;
	thread->registers[13] = regs->r13;
	thread->registers[14] = regs->r14;
	thread->registers[15] = regs->r15;
}
#endif

SEC("iter/task")
int dump(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	struct gs_dump_thread *thread;
	__u32 zero = 0;
	long bytes;

	if (!task || task->tgid != target)
		return 0;
	thread = bpf_map_lookup_elem(&scratch, &zero);
	if (!thread)
		return 0;
	thread->tid = task->pid;
	thread->on_cpu = task->on_cpu;
	__builtin_memcpy(thread->comm, task->comm, sizeof(thread->comm));
	copy_registers(thread, (struct pt_regs *)bpf_task_pt_regs(task));
	/* a stack that changes while it is read would be nonsense */
	bytes = thread->on_cpu ? 0 : bpf_get_task_stack(task, thread->kernel, sizeof(thread->kernel), 0);
	thread->n_kernel = bytes > 0 ? bytes / 8 : 0;
	bpf_seq_write(context->meta->seq, thread, sizeof(*thread));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
