/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* All that differs between architectures. */
#ifndef GPUSTROBE_ARCH_BPF_H
#define GPUSTROBE_ARCH_BPF_H

#if defined(__TARGET_ARCH_x86)
#define REGS_PC(r) ((r)->ip)
#define REGS_SP(r) ((r)->sp)
#define REGS_FP(r) ((r)->bp)
#define REGS_USER(r) (((r)->cs & 3) == 3)
#define REGS_64BIT(r) ((r)->cs != 0x23) /* __USER32_CS: ia32 programs on a 64-bit kernel */
#define STRIP_POINTER_AUTH(a) (a)
#elif defined(__TARGET_ARCH_arm64)
#define REGS_PC(r) ((r)->pc)
#define REGS_SP(r) ((r)->sp)
#define REGS_FP(r) ((r)->regs[29])
#define REGS_USER(r) (((r)->pstate & 0xf) == 0)
#define REGS_64BIT(r) (!((r)->pstate & 0x10))
#define STRIP_POINTER_AUTH(a) ((a) & ((1ULL << 48) - 1))
#endif

#endif
