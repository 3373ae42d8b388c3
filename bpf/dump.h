/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One thread as bpf/dump.bpf.c writes it and agent/dump.py reads it. Little-endian. */
#ifndef GPUSTROBE_DUMP_H
#define GPUSTROBE_DUMP_H

#define GS_DUMP_KERNEL 64

struct gs_dump_thread {
	__u32 tid;
	__u32 on_cpu;        /* running: registers are those of its last entry into the kernel, n_kernel is 0 */
	__u32 n_kernel;
	__u32 pad;
	__u64 pc;
	__u64 registers[16]; /* by DWARF number */
	__u64 kernel[GS_DUMP_KERNEL];
	char comm[16];
};

#endif
