/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* All that differs between architectures. */
#ifndef GPUSTROBE_ARCH_BPF_H
#define GPUSTROBE_ARCH_BPF_H

#if defined(__TARGET_ARCH_x86)
#define REGS_PC(r) ((r)->ip)
#define REGS_SP(r) ((r)->sp)
#define REGS_FP(r) ((r)->bp)
#define REGS_USER(r) (((r)->cs & 3) == 3)
#define REGS_ARGUMENT1(r) ((r)->di)
#define REGS_ARGUMENT2(r) ((r)->si)
#define REGS_64BIT(r) ((r)->cs != 0x23) /* __USER32_CS: ia32 programs on a 64-bit kernel */
#define STRIP_POINTER_AUTH(a) (a)
/* By DWARF number: rax rdx rcx rbx rsi rdi rbp rsp r8 ... r15 */
#define REGS_COPY(to, r) do { \
	(to)[0] = (r)->ax; (to)[1] = (r)->dx; (to)[2] = (r)->cx; (to)[3] = (r)->bx; (to)[4] = (r)->si; (to)[5] = (r)->di; \
	(to)[6] = (r)->bp; (to)[7] = (r)->sp; (to)[8] = (r)->r8; (to)[9] = (r)->r9; (to)[10] = (r)->r10; (to)[11] = (r)->r11; \
	(to)[12] = (r)->r12; (to)[13] = (r)->r13; (to)[14] = (r)->r14; (to)[15] = (r)->r15; } while (0)
/* gregs of a ucontext: r8 ... r15 rdi rsi rbp rbx rdx rax rcx rsp rip */
#define SIGNAL_GREGS 40 /* bytes into ucontext_t */
#define SIGNAL_COPY(to, g) do { \
	(to)[0] = (g)[13]; (to)[1] = (g)[12]; (to)[2] = (g)[14]; (to)[3] = (g)[11]; (to)[4] = (g)[9]; (to)[5] = (g)[8]; \
	(to)[6] = (g)[10]; (to)[7] = (g)[15]; (to)[8] = (g)[0]; (to)[9] = (g)[1]; (to)[10] = (g)[2]; (to)[11] = (g)[3]; \
	(to)[12] = (g)[4]; (to)[13] = (g)[5]; (to)[14] = (g)[6]; (to)[15] = (g)[7]; } while (0)
#define SIGNAL_PC(g) ((g)[16])
#define SIGNAL_SP(g) ((g)[15])
#define SIGNAL_FP(g) ((g)[10])
#define THREAD_POINTER(task) kernel_u64((task) + config.offset.task_struct_thread + config.offset.thread_struct_fsbase)
#elif defined(__TARGET_ARCH_arm64)
#define REGS_PC(r) ((r)->pc)
#define REGS_SP(r) ((r)->sp)
#define REGS_FP(r) ((r)->regs[29])
#define REGS_USER(r) (((r)->pstate & 0xf) == 0)
#define REGS_ARGUMENT1(r) ((r)->regs[0])
#define REGS_ARGUMENT2(r) ((r)->regs[1])
#define REGS_64BIT(r) (!((r)->pstate & 0x10))
#define STRIP_POINTER_AUTH(a) ((a) & ((1ULL << 48) - 1))
#error "unwind rules of arm64 (rules.h knows rsp and rbp) are still to be written"
#endif

#endif
