/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of core.so, as bpf/loader.py declares it to ctypes.
 *
 * A core loads the sampler, drains its ring on a thread of its own that never touches Python, interns what it finds, and hands
 * over one gs_window a second. All functions but open and close may be called from any thread. */
#ifndef GPUSTROBE_CORE_H
#define GPUSTROBE_CORE_H

#include <stdint.h>

#define GS_API __attribute__((visibility("default")))
#define GS_CORE_VERSION 3

GS_API unsigned gs_core_version(void);

/* Why a call failed. X(name, what a person reads) */
#define GS_FAULTS(X) \
	X(none, "no error") \
	X(argument, "an argument makes no sense") \
	X(memory, "out of memory") \
	X(object, "the BPF object file is missing or damaged") \
	X(btf, "the kernel has no BTF and no offsets were given") \
	X(offset, "the kernel's types lack a field the sampler needs") \
	X(permission, "not permitted to load BPF programs") \
	X(memlock, "RLIMIT_MEMLOCK is too low for this kernel's BPF maps") \
	X(load, "the kernel refused the BPF program") \
	X(perf_paranoid, "not permitted to open system-wide perf events") \
	X(perf, "perf events are not available") \
	X(thread, "the draining thread could not be started")
enum gs_fault {
#define X(name, text) GS_FAULT_##name,
	GS_FAULTS(X)
#undef X
};

struct gs_error {
	int32_t fault; /* enum gs_fault */
	int32_t number; /* errno, or 0 */
	char text[1024]; /* details: which object, which call, the verifier's last lines */
};

enum gs_option_flag {
	GS_OPTION_FILTER = 1,         /* sample only `pids` */
	GS_OPTION_CHILDREN = 2,       /* and the processes they start from now on, or have started */
	GS_OPTION_KERNEL_STACKS = 4,
	GS_OPTION_STATS = 8,          /* let the kernel time BPF programs while this core lives (30 ns a run) */
	GS_OPTION_NO_KERNEL = 16,     /* no BPF at all: records come from gs_core_feed, windows end by gs_core_cut (tests) */
	GS_OPTION_STALL = 32,         /* never drain before stop (tests: ring_full) */
	GS_OPTION_OFF_CPU = 64,       /* time waits too: each second has a second window, of sample type off_cpu */
	GS_OPTION_LAUNCHES = 128,     /* kernel launches: each second has windows of sample types launch and moment too */
};

struct gs_options {
	uint32_t size; /* of this struct: a guard against a mismatched loader.py */
	uint32_t flags;
	uint32_t hz;
	uint32_t n_pids;
	const uint32_t *pids;
	const char *object_path; /* profile.bpf.o */
	const char *proc_root;
	const uint32_t *offsets; /* struct gs_offsets of a kernel without BTF (bpf/bcc_offsets.py), or NULL */
	uint32_t n_offsets;
	uint32_t ring_bytes;   /* 0: 4 s x CPUs x Hz x 512 bytes; rounded up to a power of two */
	uint32_t max_frames;   /* distinct, in an epoch; 0 = 65536 */
	uint32_t max_stacks;   /* 0 = 32768 */
	uint32_t max_threads;  /* 0 = 32768 */
	uint32_t max_rows;     /* distinct (stack, thread) of one window; 0 = 65536 */
	uint32_t max_windows;  /* waiting to be taken; 0 = 16 */
	uint32_t max_processes; /* mapping tables; 0 = 4096 */
	uint32_t mapping_rows; /* 0 = 131072, 4 MB */
	uint32_t unwind_bytes; /* memory for unwind rows; 0 = 24 MB */
	uint32_t unwind_share; /* thousandths of one core that building unwind rows may take; 0 = 200 */
	uint32_t wait_threshold_us; /* off-CPU: shorter waits are only counted */
	const char *off_cpu_path; /* offcpu.bpf.o */
	const char *launch_path;  /* launch.bpf.o */
};

struct gs_core;

/* NULL and *error set on failure. Nothing is sampled yet. */
GS_API struct gs_core *gs_core_open(const struct gs_options *options, struct gs_error *error);
GS_API int gs_core_start(struct gs_core *core, struct gs_error *error); /* 0, or -1 and *error */
/* Ends sampling, drains what is left and ends the last window; take() then returns the windows left, then -1. */
GS_API void gs_core_stop(struct gs_core *core);
GS_API void gs_core_close(struct gs_core *core);

/* `GS_DROP_*`: indices into gs_books.drops, in the order of drops.h. */
#include "drops.h"
enum gs_drop {
#define X(name, where, text) GS_DROP_##name,
	GS_DROPS(X)
#undef X
	GS_DROP_COUNT
};

struct gs_books {
	uint64_t produced, idle, filtered, delivered;
	uint64_t drops[GS_DROP_COUNT];
};

/* kind, owner, address, detail: agent/model.py RawKind and RawFrame */
enum { GS_FRAME_VDSO = 6 };
struct gs_frame {
	uint64_t address;
	uint64_t detail;
	uint32_t kind;
	uint32_t owner;
};

struct gs_process_record {
	uint64_t start_boottime;
	uint64_t cgroup_id;
	uint32_t process_id;
	uint32_t tgid;
	uint32_t details;        /* offset of its struct gs_process_details (without the unused end of text) in gs_window.details */
	uint32_t details_length; /* 0 = none */
	char comm[16];
};

struct gs_thread_record {
	uint32_t thread_id;
	uint32_t process_id;
	uint32_t tid;
	char comm[16];
	uint32_t wait; /* enum gs_wait_kind of bpf/wait.h: its rows are waits of this kind; 0 in CPU windows */
};

enum gs_sample_type { GS_TYPE_CPU, GS_TYPE_OFF_CPU, GS_TYPE_LAUNCH, GS_TYPE_MOMENT, GS_TYPE_COUNT };

struct gs_file_record;

/* One second. Ids count up from 0 in each epoch; what is new since the last window taken comes along. */
struct gs_window {
	uint64_t epoch;
	int64_t start_unix;
	uint64_t duration;
	uint64_t period;
	struct gs_books books;
	uint32_t n_rows;
	uint32_t first_frame, n_frames;
	uint32_t first_stack, n_stacks;
	uint32_t n_stack_frames;
	uint32_t n_processes, n_threads, n_files;
	uint32_t details_length;
	uint32_t codes_length, jits_length;
	uint32_t sample_type, pad; /* enum gs_sample_type */
	uint32_t *stack; /* n_rows */
	uint32_t *thread;
	uint64_t *value;
	uint64_t *mark; /* launch and moment, else NULL: rows are not summed. launch: the correlation id, value 16.16 launches the
			 * stack stands for; moment: CLOCK_MONOTONIC ns it began at, value ns it lasted */
	struct gs_frame *frames;
	uint32_t *stack_ends;   /* n_stacks: end of each stack in stack_frames */
	uint32_t *stack_frames; /* frame ids, leaf first */
	struct gs_process_record *processes;
	struct gs_thread_record *threads;
	struct gs_file_record *files; /* bpf/files.h; each fd passes to the caller */
	char *details;
	uint8_t *codes; /* bpf/codes.h: Python code objects */
	uint8_t *jits;  /* bpf/jit_names.h: names of JIT code */
};

/* 1 and the oldest window waiting, 0 after timeout_ms without one, -1 when stopped and empty. gs_window_free() it; file
 * descriptors in it are the caller's. */
GS_API int gs_core_take(struct gs_core *core, uint32_t timeout_ms, struct gs_window *out);
GS_API void gs_window_free(struct gs_window *window);

/* GS_OPTION_LAUNCHES: probes the file's function of this name in all processes that map it, for as long as the core lives. 0, or an errno. */
GS_API int gs_core_probe_launches(struct gs_core *core, const char *path, const char *function);
/* These threads' samples and waits come as moments too, one row each; replaces the threads given before. At most 4096. */
GS_API void gs_core_watch_moments(struct gs_core *core, const uint32_t *tids, uint32_t n);

/* Totals since open. X(name, what a person reads) */
#define GS_COUNTERS(X) \
	X(bpf_time_ns, "time in the BPF sampler, as the kernel measures it") \
	X(bpf_runs, "runs of the BPF sampler, idle CPUs included") \
	X(bpf_map_bytes, "memory of the BPF maps, ring included") \
	X(verified_instructions, "instructions the verifier walked") \
	X(cpus, "CPUs with a timer") \
	X(entered, "timer events that reached the sampler") \
	X(delivered, "samples in windows") \
	X(user_frames, "user frames walked") \
	X(frames_guessed, "frames found by scanning the stack") \
	X(scans_failed, "scans of the stack that found no frame") \
	X(wakeups, "times a sample woke the agent") \
	X(watch_full, "children of watched processes that could not be watched") \
	X(off_cpu_time_ns, "time in the off-CPU program, as the kernel measures it") \
	X(off_cpu_runs, "runs of the off-CPU program: context switches") \
	X(waits_brief, "waits below the threshold") \
	X(waits_ended, "waits of at least the threshold that ended") \
	X(waits_walked, "stacks taken as threads left the CPU") \
	X(waits_unwalked, "stacks not taken: the budget was spent") \
	X(waits_stack_lost, "stacks of waits that found no room in the ring") \
	X(waits_scratch_busy, "stacks of waits not taken: the scratch was in use") \
	X(waits_shown, "waits and parts of waits shown") \
	X(waits_by_site, "waits shown with the stack of an earlier one at the same place") \
	X(waits_without_stack, "waits shown without a stack") \
	X(waits_came_unseen, "threads that came to a CPU without the off-CPU program being run") \
	X(waits_left_unseen, "threads that left a CPU without the off-CPU program being run") \
	X(launches_entered, "launches whose stack the injected library asked for") \
	X(launches_filtered, "... of processes that are not watched") \
	X(launches_walked, "... whose stack was taken") \
	X(launches_scratch_busy, "stacks of launches not taken: the scratch was in use") \
	X(launches_ring_full, "stacks of launches that found no room in the ring") \
	X(launches_lost, "stacks of launches that found no room in a table or window") \
	X(launch_time_ns, "time in the program on launches, as the kernel measures it") \
	X(moments_lost, "moments that found no room in a window") \
	X(waiting_threads, "threads whose waits are known") \
	X(waiting_bytes, "memory of their stacks") \
	X(replays, "samples walked again once their process had its table") \
	X(replays_complete, "of these, to the thread's first frame") \
	X(drains, "times the ring was drained") \
	X(bytes, "bytes drained") \
	X(windows, "windows ended") \
	X(epochs, "times all ids were given anew") \
	X(frames, "distinct frames in this epoch") \
	X(stacks, "distinct stacks in this epoch") \
	X(threads, "threads in this epoch") \
	X(processes, "processes in this epoch") \
	X(table_bytes, "memory of the tables of frames, stacks, threads and processes")
enum gs_counter {
#define X(name, text) GS_COUNTER_##name,
	GS_COUNTERS(X)
#undef X
	GS_COUNTER_COUNT
};
/* Fills up to `room` totals in the order of GS_COUNTERS, then bpf/mappings.h GS_MAPPING_COUNTERS and bpf/tables.h
 * GS_TABLE_COUNTERS; returns how many there are. */
GS_API uint32_t gs_core_counters(struct gs_core *core, uint64_t *out, uint32_t room);
/* Waits until the unwind tables of all processes listed so far are built: 1, or 0 after timeout_ms. */
GS_API int gs_core_settled(struct gs_core *core, uint32_t timeout_ms);
/* Name of the i-th total, NULL past the end. */
GS_API const char *gs_core_counter_name(uint32_t i);

/* Tests: one ring record of `length` bytes; ends the running window at CLOCK_MONOTONIC now_ns. Only with GS_OPTION_NO_KERNEL. */
GS_API void gs_core_feed(struct gs_core *core, const void *record, uint64_t length);
GS_API void gs_core_cut(struct gs_core *core, uint64_t now_ns);

#endif
