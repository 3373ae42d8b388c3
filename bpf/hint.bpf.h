/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Which file the leaf of a process without a table lies in: names a process that is gone before the agent gets to it. */
#ifndef GPUSTROBE_HINT_BPF_H
#define GPUSTROBE_HINT_BPF_H

/* bpf_find_vma's callback needs a kernel that knows function pointers in programs (5.13), hence a program of its own that
 * older kernels never load. 6 us, once per process. */
struct gs_hint_search {
	__u64 pc;
	struct gs_leaf_hint hint;
};

static long describe_vma(struct task_struct *task, struct vm_area_struct *vma, struct gs_hint_search *search)
{
	__u64 at = (__u64)vma;
	__u64 file = kernel_u64(at + config.offset.vm_area_struct_vm_file);
	__u64 inode = file ? kernel_u64(file + config.offset.file_f_inode) : 0;

	if (!inode)
		return 0;
	search->hint.inode = kernel_u64(inode + config.offset.inode_i_ino);
	search->hint.device = kernel_u64(kernel_u64(inode + config.offset.inode_i_sb) + config.offset.super_block_s_dev);
	search->hint.file_offset = search->pc - kernel_u64(at + config.offset.vm_area_struct_vm_start) +
				   (kernel_u64(at + config.offset.vm_area_struct_vm_pgoff) << config.page_shift);
	return 0;
}

SEC("perf_event")
int leaf_hint(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct gs_cpu_counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (!s || !c)
		return 0;
	struct gs_hint_search search = { .pc = s->leaf };

	bpf_find_vma(bpf_get_current_task_btf(), search.pc, describe_vma, &search, 0);
	if (search.hint.inode) {
		push(s, search.hint.inode);
		push(s, search.hint.file_offset);
		push(s, search.hint.device);
		s->sample.flags |= GS_SAMPLE_HINT;
	}
	submit(s, c);
	return 0;
}

#endif
