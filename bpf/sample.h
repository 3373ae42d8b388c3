/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What kernel side and user side share: one sample, its frame words, the process and mapping tables.
 * Little-endian, fixed sizes, asserted at the end. docs/architecture.md follows one sample through it. */
#ifndef GPUSTROBE_SAMPLE_H
#define GPUSTROBE_SAMPLE_H

#define GS_MAX_KERNEL_WORDS 127
#define GS_MAX_USER_WORDS 768 /* 384 frames, a Python frame takes two words */
#define GS_MAX_MAPPINGS 4096  /* executable mappings of one process; binary search is 12 steps */

/* One sample in the ring: this header, then n_kernel + n_user words, leaf first, kernel before user. */
struct gs_sample {
	__u64 time_ns;        /* CLOCK_MONOTONIC */
	__u64 start_boottime; /* of the thread group's leader, ns: keeps reused PIDs apart */
	__u64 cgroup_id;      /* cgroup v2 id of the task */
	__u64 value;          /* 1 for a CPU sample; ns at the end of a wait */
	__u32 tgid;           /* host PIDs */
	__u32 tid;
	char comm[16];        /* of the thread, NUL padded */
	__u16 cpu;
	__u16 n_kernel;       /* words */
	__u16 n_user;         /* words */
	__u16 flags;          /* enum gs_sample_flag */
};

enum gs_sample_flag {
	GS_SAMPLE_KTHREAD = 1,     /* no user side */
	GS_SAMPLE_NO_TABLE = 2,    /* the process's mappings are not known yet: user words are raw addresses */
	GS_SAMPLE_STALE_TABLE = 4, /* the table's stamp differs from the process's: re-list, user words are raw addresses */
	GS_SAMPLE_HINT = 8,        /* one gs_leaf_hint follows the words */
	GS_SAMPLE_STACK = 128,     /* a gs_stack_copy follows the words (and comes before the hint) */
	GS_SAMPLE_UNRESOLVED = 16, /* an executable PC was in no mapping: re-list, rate limited */
	GS_SAMPLE_WAIT = 32,       /* off-CPU: the stack of a wait that begins; a gs_wait_tail follows the words and the stack */
	GS_SAMPLE_WAIT_END = 64,   /* off-CPU: a wait has ended; a gs_wait_tail follows */
	GS_SAMPLE_LAUNCH = 256,    /* a kernel launch; a gs_launch_tail follows the words */
};

/* A frame so near to where a process's stack began has no caller: ld.so's _start, which has no unwind rows, and other entry points
 * written by hand. */
#define GS_FIRST_FRAME 64

#define GS_STACK_WORDS 1024 /* 8 KB: most stacks of compilers and of ld.so, whose processes live for a few samples only */

/* User registers and the stack from rsp on, of a sample whose process has no table: the agent walks it when it has one. */
struct gs_stack_copy {
	__u64 pc;
	__u64 registers[16]; /* by DWARF number */
	__u64 n;             /* words that follow */
};

/* Where the leaf of a process that the agent has not seen lies, by bpf_find_vma; names a process that is gone by then. */
struct gs_leaf_hint {
	__u64 inode;
	__u64 file_offset;
	__u32 device; /* kernel's dev_t: major << 20 | minor */
	__u32 pad;
};

/* A frame word: the kind in bits 60-63.
 *   RAW     0   user address, not normalized (bits 0-46)
 *   NATIVE  1   file id (bits 40-59) and file offset (bits 0-39)
 *   PYTHON  2   address of the code object (bits 0-47); a second word follows: instruction offset << 32 | check
 *   END     3   enum gs_end in bits 0-7: why the stack ends here, when it is not the thread's first frame; always last
 *   GUESSED 4   as NATIVE, found by scanning the stack
 *   RAW_GUESSED 5 as RAW, found by scanning the stack
 *   KERNEL  15  a kernel address as it is
 * User addresses and offsets are those of the frame's own instruction: a return address has had 1 subtracted, so that it lies
 * inside the call. The kernel program does it, for all user words: only the walk knows which of them are return addresses.
 * Kernel words are as bpf_get_stack gives them; bpf/record.c subtracts 1 from all but the first. */
enum gs_word_kind { GS_RAW, GS_NATIVE, GS_PYTHON, GS_END, GS_GUESSED, GS_RAW_GUESSED, GS_KERNEL = 15 };
#define GS_WORD_SHIFT 60
#define GS_FILE_SHIFT 40
#define GS_FILE_BITS 20
#define GS_OFFSET_MASK ((1ULL << GS_FILE_SHIFT) - 1)

/* Why a user stack ended early. X(name, what a person reads) */
#define GS_ENDS(X) \
	X(complete, "the thread's first frame") \
	X(frame_pointer, "walked by frame pointers, end not certain") \
	X(no_mapping, "address in no known mapping") \
	X(no_table, "no unwind table for this file yet") \
	X(bad_cfa, "the unwind rule gave an impossible frame") \
	X(unreadable_stack, "stack memory not readable") \
	X(too_deep, "more frames than the limit") \
	X(no_registers, "user registers not available") \
	X(exiting, "the process was exiting") \
	X(python_unplaced, "Python frames could not be placed among the native ones") \
	X(wait_unwalked, "no stack was taken of this wait: too many at once") \
	X(asleep_before, "it waits since before profiling began: its callers are not known")
enum gs_end {
#define X(name, text) GS_END_##name,
	GS_ENDS(X)
#undef X
};

/* procs: HASH tgid -> gs_process. A sample trusts it only if the three stamp fields match the task's. */
struct gs_process {
	__u64 start_boottime;
	__u64 exec_vm;     /* mm->exec_vm */
	__u64 start_stack; /* mm->start_stack */
	__u32 first;       /* index of its first row in mappings, sorted by start */
	__u32 count;
	__u32 flags;
	__u32 python;      /* runtime descriptor, 0 = none */
};

/* mappings: ARRAY, preallocated; one executable mapping. */
struct gs_mapping {
	__u64 start;
	__u64 end;
	__u64 file_offset; /* of start */
	__u32 file_id;     /* 0 = anonymous or special: frames stay RAW */
	__u32 table;       /* unwind table, 0 = none */
};

_Static_assert(sizeof(struct gs_sample) == 64, "a sample's header");
_Static_assert(sizeof(struct gs_leaf_hint) == 24, "three words");
_Static_assert(sizeof(struct gs_process) == 40 && sizeof(struct gs_mapping) == 32, "values of procs and mappings");

#endif
