/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The sampler's maps and its per-CPU scratch. Sizes of 1 are set by the loader. */
#ifndef GPUSTROBE_MAPS_BPF_H
#define GPUSTROBE_MAPS_BPF_H

#define GS_WORD_MASK 2047
#define GS_STACK_PIECE 64 /* words read at once */
_Static_assert(GS_MAX_KERNEL_WORDS + GS_MAX_USER_WORDS + 4 + sizeof(struct gs_stack_copy) / 8 + GS_STACK_WORDS <= GS_WORD_MASK,
	       "words, END, stack and hint fit the scratch");

const volatile struct gs_config config;

#define GS_PENDING_MASK 1023
#define GS_PYTHON_FRAME_BYTES 128 /* of a frame and of a code object: all fields of 3.9 to 3.14 lie below */
#define GS_PYTHON_CODE_BYTES 144

struct gs_python_walk {
	struct gs_python p;
	__u64 frame;  /* the next to read; 0 = none left */
	__u64 cframe; /* the next record of the C-stack chain */
	__u64 marker; /* lies inside the native frame that the pending ones belong to */
	__u32 n, at;  /* words pending, words emitted */
	__u64 frame_bytes[GS_PYTHON_FRAME_BYTES / 8];
	__u64 code_bytes[GS_PYTHON_CODE_BYTES / 8];
	__u64 pending[GS_PENDING_MASK + 1];
};

/* One stack being walked. sample and words lie as they go into the ring. */
struct gs_scratch {
	__u32 in_use;
	__u32 wake;
	__u64 pc, sp, fp;
	__u64 leaf;
	__u64 start_stack; /* where the main thread's stack begins; 0 = not known */
	__u64 map_start, map_end; /* the mapping of the last frame: the next is most often in it too */
	__u64 map_offset;
	__u32 map_file;
	__u32 map_table;
	__u32 first, count; /* rows of the process in `mappings` */
	__u32 n;            /* words so far */
	__u32 frames;
	__u32 tails;
	__u32 is_return; /* pc is a return address: the call lies one byte before */
	__u32 end;
	__u32 mode;   /* python.bpf.h */
	__u32 failed; /* the native walk is over, what follows are Python frames that found no place in it */
	__u32 pad;
	__u32 by_fp;    /* fp was read from a frame that a frame pointer led to */
	__u32 unproven; /* pc is where a frame pointer led to: not known yet to be a return address */
	__u32 guessed;  /* pc was found by scanning the stack */
	__u32 guesses;
	__u64 saved[4]; /* words found that point up the stack */
	__u32 n_saved, pad2;
	__u64 callee[2]; /* where the function whose caller is sought may begin: its mapping up to where it is */
	__u64 back[4];  /* pc, sp, fp, is_return before the frame pointer was tried */
	__u64 low;    /* [low, sp) is the frame just left */
	__u64 registers[16]; /* of the interrupted function, by DWARF number; its caller no longer has them */
	__u64 signal[17];    /* gregs of a signal frame */
	__u64 tail[2];       /* off-CPU and launches: the struct gs_wait_tail or gs_launch_tail that goes behind the words */
	struct gs_python_walk python;
	struct gs_sample sample;
	__u64 words[GS_WORD_MASK + 1 + GS_STACK_PIECE];
};

struct gs_asked {
	__u64 start_boottime;
	__u64 time_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_scratch);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_cpu_counters);
} counters SEC(".maps");

/* Hashes are preallocated: perf_event programs may use no other before 6.1. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_process);
} procs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct gs_mapping);
} mappings SEC(".maps");

/* tgid -> start_boottime, 0 = whichever process has the PID now */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct gs_asked);
} asks SEC(".maps");

enum { GS_PROGRAM_WALK, GS_PROGRAM_HINT, GS_PROGRAM_GUESS, GS_PROGRAM_COPY, GS_PROGRAMS };
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, GS_PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

#endif
