/* SPDX-License-Identifier: Apache-2.0 */
/* The ring between a CUDA process and the agent: one sealed memfd, written by libgpustrobe_cupti.so (or the cupti-python
 * collector), read by the agent. cupti/ring.py is its Python twin; a test compares the two. This file is the format.
 *
 * Finding it   /proc/PID/fd/N -> "/memfd:gpustrobe-cupti (deleted)". The agent opens that link O_RDWR|O_CLOEXEC, checks
 *              fcntl(F_GET_SEALS) for F_SEAL_SHRINK|F_SEAL_GROW (without both a truncation could raise SIGBUS in the agent),
 *              fstat size == total_size, magic, version and every offset, then maps it shared. `pid` (in the writer's own PID
 *              namespace: last number of NSpid in /proc/PID/status) tells a process from a fork's child that inherited the fd.
 *              A program that closes descriptors it does not know still has the mapping: /proc/PID/map_files/ shows the same name.
 * Two agents   flock(LOCK_EX|LOCK_NB) on the opened fd; who does not get it does not touch anything. The kernel drops the lock
 *              when its holder dies; the next agent goes on at `tail`.
 * Clocks       `mono` CLOCK_MONOTONIC ns, `unix` CLOCK_REALTIME ns, `cupti` what cuptiGetTimestamp and activity records
 *              give, ns. A WINDOW record carries the differences. Durations in ns.
 * Presence     the agent stores a new `heartbeat` at least each second; the writer watches that it *changes*, by its own
 *              clock: no change for GS_HEARTBEAT_LIMIT_NS and it is dormant again.
 * Wish         the agent makes config_sequence odd, stores the fields of `agent`, makes it even, adds 1 to `wake`, then
 *              futex(FUTEX_WAKE, not private) on `wake`. A dormant writer blocks on that word without a timeout: it costs nothing.
 * Ring         slot i of the ring is record number n with n % ring_slots == i. A producer takes numbers by compare-and-swap on
 *              `head`, only while head - tail <= ring_slots - wanted, else it drops and counts `ring_full`: it never waits. It writes
 *              bytes 4-63, then stores commit = (uint32_t)n + 1 with release order. The consumer reads the commits of tail..head
 *              first, takes the leading run that is committed, copies it, and only then stores `tail`. Record n+1 may be committed
 *              before n; an uncommitted number in front holds back the rest for the time of one store (or, if its thread died,
 *              until the consumer skips it: after 10 s, or once the process is gone).
 * Order        records come in the order of their numbers, which is not the order of their times. A LAUNCH stands before every
 *              record with its correlation id; activity comes late and out of order, up to minutes after its WINDOW has closed.
 *              DEVICE stands before the first record with its ordinal; an arena entry is complete before a record names it.
 * Arena        append-only entries, 8-byte aligned, from byte 8 on (id 0 = none, not known); an id is the entry's byte offset.
 *              A writer takes bytes by compare-and-swap on `arena_head`, fills the entry, and stores `size` last with release
 *              order: a reader that walks stops at size 0. Entries never change. The same text has one id (but for a rare race).
 * Trust        none: the agent checks every number it reads, ids and sizes above all; any byte may be a lie.
 * All little-endian. A reader refuses another `version`; fields are only ever added in reserved space, which is zero. */
#ifndef GPUSTROBE_RING_H
#define GPUSTROBE_RING_H

#include <stddef.h>
#include <stdint.h>

#define GS_RING_NAME "gpustrobe-cupti"
#define GS_RING_MAGIC 0x3149545055435347ULL /* "GSCUPTI1" */
#define GS_RING_VERSION 1
#define GS_CONTROL_SIZE 4096
#define GS_RING_SLOTS 65536 /* 4 MiB; the agent drains 10 times a second, so full at 650 k records/s. Readers take ring_slots */
#define GS_ARENA_SIZE (4u << 20) /* some 40 000 shapes; pages are touched as they are used */
#define GS_HEARTBEAT_LIMIT_NS 2500000000ULL

/* What the agent wants. AUTO is the policy of the CUPTI version (cupti/policy.h). `detail_until` counts in every mode but OFF. */
enum gs_mode { GS_MODE_OFF, GS_MODE_AUTO, GS_MODE_WINDOWS, GS_MODE_SESSIONS, GS_MODE_ON_DEMAND, GS_MODE_ALWAYS };
enum gs_graph_level { GS_GRAPH_BY_SHARE, GS_GRAPH_WHOLE, GS_GRAPH_NODES };

/* What the writer is doing. X(name, what a person reads) */
#define GS_STATES(X) \
	X(dormant, "no agent: nothing is subscribed, no thread wakes") \
	X(waiting, "an agent is there; the CUDA driver is not initialized yet") \
	X(between, "between windows") \
	X(recording, "in a window") \
	X(standing_back, "the user's own profiler is at work") \
	X(refused, "this process cannot be recorded; see reason") \
	X(exited, "the process has ended, its tail is in the ring")

/* Why nothing (more) is recorded. X(name, what a person reads) */
#define GS_REASONS(X) \
	X(none, "") \
	X(no_driver, "libcuda.so.1 is not loaded") \
	X(driver_not_ready, "cuInit has not returned") \
	X(no_cupti, "no libcupti of the version that cudart has was found") \
	X(cupti_too_old, "this CUPTI is older than 12.0") \
	X(cupti_symbol, "libcupti lacks a function that is needed") \
	X(subscriber_taken, "another profiler holds CUPTI's subscriber") \
	X(foreign_profiler, "another profiler uses CUPTI in this process") \
	X(not_permitted, "CUPTI lacks the permission (NVreg_RestrictProfilingToAdminUsers, or the container)") \
	X(virtual_device, "CUPTI does not trace on this virtual device") \
	X(hardware_busy, "CUPTI's hardware is taken by another tool") \
	X(enable_failed, "CUPTI refused an activity kind") \
	X(bad_timestamps, "more than 0.1 % of the records had no timestamp") \
	X(no_memory, "memory for buffers or tables was not to be had") \
	X(forked, "a fork's child does not record")

/* Why a window closed. X(name, what a person reads) */
#define GS_CLOSES(X) \
	X(complete, "its time was over") \
	X(agent_gone, "the agent's heartbeat stopped") \
	X(mode_changed, "the agent asked for something else") \
	X(foreign_profiler, "another profiler came") \
	X(buffers_empty, "no activity buffer was left") \
	X(enable_failed, "CUPTI refused") \
	X(exit, "the process ended")

/* Counters since the process started, u64 each, in this order; only ever extended at the end. X(name, what a person reads)
 * Books of the ring: records + drop_ring_full = records that were made. The agent reads `tail` for what it has taken. */
#define GS_COUNTERS(X) \
	X(records, "records committed to the ring") \
	X(drop_ring_full, "records dropped: the ring was full") \
	X(drop_cupti, "activity records CUPTI says it dropped") \
	X(drop_pool, "activity lost because no host buffer was left: buffers, not records") \
	X(drop_zero_time, "activity records with start or end 0") \
	X(drop_reversed_time, "activity records that end before they start") \
	X(drop_future_time, "activity records that end after now") \
	X(drop_outside, "activity records of launches that no window covers") \
	X(drop_graph_correlation, "graph records whose correlation id is wrong below CUPTI 13.1 U1") \
	X(drop_unknown_kind, "activity records of a kind we do not know") \
	X(drop_bad_record, "activity records that run past their buffer") \
	X(shapes_coarse, "kernel records without grid and block: the arena was three quarters full") \
	X(shapes_full, "kernel records without a name: the arena was full") \
	X(strings_cut, "names longer than 32 KiB, cut") \
	X(names_busy, "launches whose function got no id: the table was locked just then") \
	X(shapes, "shapes in the arena") \
	X(strings, "strings in the arena") \
	X(windows, "windows opened") \
	X(windows_lossy, "windows of which something was lost") \
	X(windows_skipped, "windows not opened: standing back, refused, or late") \
	X(activity_records, "activity records read from CUPTI's buffers") \
	X(activity_buffers, "activity buffers read") \
	X(callbacks, "CUPTI callbacks, enter and exit") \
	X(callback_ns, "own time in callbacks; estimated from one in 16") \
	X(buffer_ns, "own time reading buffers, in our thread") \
	X(thread_ns, "CPU time of our thread, CUPTI's work inside it included") \
	X(enable_ns, "time inside CUPTI to open windows") \
	X(disable_ns, "time inside CUPTI to close windows") \
	X(flush_ns, "time inside CUPTI to flush") \
	X(enables, "windows opened by CUPTI calls; overlapping windows share one") \
	X(launches, "launches seen in windows") \
	X(launches_sampled, "launches whose stack was asked for") \
	X(launches_counted, "launches counted exactly, in and out of windows") \
	X(latency_in_ns, "duration of launch calls in windows, sum") \
	X(latency_in, "... of so many calls") \
	X(latency_out_ns, "duration of launch calls seen out of windows (just before one, or while counting), sum") \
	X(latency_out, "... of so many calls") \
	X(overhead_ns, "duration of CUPTI's own overhead records, sum") \
	X(attaches, "times an agent came") \
	X(foreign, "times we stood back for another profiler") \
	X(cupti_errors, "CUPTI calls that failed") \
	X(callbacks_in_child, "callbacks in a fork's child, ignored") \
	X(counts_full, "launches not counted: the table of functions was full") \
	X(finalizes, "times CUPTI was finalized, which ends what it costs between sessions")

#define X(name, text) GS_STATE_##name,
enum gs_state { GS_STATES(X) GS_N_STATES };
#undef X
#define X(name, text) GS_REASON_##name,
enum gs_reason { GS_REASONS(X) GS_N_REASONS };
#undef X
#define X(name, text) GS_CLOSE_##name,
enum gs_close { GS_CLOSES(X) GS_N_CLOSES };
#undef X
#define X(name, text) GS_COUNTER_##name,
enum gs_counter { GS_COUNTERS(X) GS_N_COUNTERS };
#undef X

/* Written once, before the memfd is sealed. */
struct gs_layout {
	uint64_t magic;
	uint32_t version;
	uint32_t control_size; /* GS_CONTROL_SIZE */
	uint64_t total_size;   /* of the memfd */
	uint64_t ring_offset;
	uint32_t ring_slots;  /* a power of two */
	uint32_t record_size; /* 64 */
	uint64_t arena_offset;
	uint64_t arena_size;
	uint32_t counters_offset; /* in the control page */
	uint32_t n_counters;      /* a reader takes min(this, its own) */
	uint32_t pid;             /* in the writer's PID namespace */
	uint32_t writer;          /* 1 = libgpustrobe_cupti.so, 2 = cupti-python collector */
	uint64_t created;         /* mono */
	uint64_t host_id;         /* reserved, 0 */
	char library_version[24]; /* NUL padded */
};

/* Written by the agent alone. */
struct gs_agent {
	uint32_t wake;            /* futex word; +1 after each change of this struct, and on attach (the writer adds 1 at its exit) */
	uint32_t config_sequence; /* odd while the agent writes */
	uint64_t heartbeat;       /* mono of the agent; only its change counts */
	uint32_t mode;            /* enum gs_mode */
	uint32_t foreign;         /* not 0: another profiler is at work here (seen by uprobe): no windows */
	uint64_t detail_until;    /* mono: record without gaps until then; 0 = no wish */
	uint64_t window_ns;       /* 0 = the policy's */
	uint64_t period_ns;       /* 0 = the policy's; >= window_ns. AUTO under a policy of SESSIONS: at least 10 s */
	uint64_t seed;            /* of window phases and stack sampling */
	uint32_t probability;     /* of a launch's stack, in units of 2^-32; the first of each (thread, function) in a window is certain */
	uint32_t counting;        /* not 0: count every launch while attached */
	uint32_t graph_level;     /* enum gs_graph_level; heard before the process's first window only */
	uint32_t node_share;      /* BY_SHARE: one process in so many records graph nodes; 0 = none */
	uint32_t flush;           /* +1: flush buffers now */
	uint32_t warm;            /* not 0: enable and disable once, at once (the first enable may take seconds) */
	uint32_t agent_pid;       /* as the agent sees itself; for people */
	uint32_t finalize;        /* +1: cuptiFinalize in the next launch call between windows, where policy and others allow it */
	uint32_t buffers_mib;     /* bound on activity buffers on the host; 0 = 64 */
	uint32_t reserved[9];
};

/* Written by the writer alone. */
struct gs_library {
	uint32_t state;  /* enum gs_state */
	uint32_t reason; /* enum gs_reason */
	uint64_t updated;       /* mono of the last change of state, or of the last round while attached */
	uint64_t heard;         /* the heartbeat value last seen */
	uint32_t cupti_version; /* cuptiGetVersion; 0 = not known */
	uint32_t driver_version; /* cuDriverGetVersion: 12040 */
	uint32_t policy;        /* enum gs_mode that AUTO means here */
	uint32_t graph_level;   /* GS_GRAPH_WHOLE or NODES once latched; BY_SHARE = not yet */
	uint32_t window;        /* id of the newest window, 0 = none yet */
	uint32_t config_heard;  /* config_sequence last taken */
	uint64_t first_enable_ns; /* the first enable of this process, measured */
	uint64_t next_window;   /* mono; 0 = none planned */
	uint32_t buffers;       /* activity buffers on the host */
	uint32_t buffer_size;   /* bytes each */
	uint32_t error;         /* CUptiResult behind `reason` */
	uint32_t reserved;
	uint64_t latch_window_ns; /* window and period in force */
	uint64_t latch_period_ns;
	char reason_text[160];  /* NUL terminated: reason and what it was about */
	char cupti_path[256];   /* NUL terminated */
};

struct gs_control {
	struct gs_layout layout;
	_Alignas(128) uint64_t head; /* numbers given to producers */
	_Alignas(128) uint64_t tail; /* numbers the consumer is done with; written by the agent alone */
	_Alignas(128) uint64_t arena_head; /* bytes given to writers, from the arena's start */
	_Alignas(128) struct gs_agent agent;
	_Alignas(128) struct gs_library library;
	_Alignas(1024) uint64_t counters[GS_N_COUNTERS]; /* relaxed adds; a reader may see them slightly apart */
	_Alignas(GS_CONTROL_SIZE) uint8_t end[];
};

enum gs_record_type {
	GS_RECORD_NONE,
	GS_RECORD_WINDOW,
	GS_RECORD_LAUNCH,
	GS_RECORD_KERNEL, /* 3-8: struct gs_activity */
	GS_RECORD_MEMCPY,
	GS_RECORD_MEMSET,
	GS_RECORD_SYNC,
	GS_RECORD_GRAPH, /* a whole graph launch */
	GS_RECORD_OVERHEAD,
	GS_RECORD_COUNT,
	GS_RECORD_DEVICE,
	GS_RECORD_CONTEXT,
	GS_RECORD_EXIT,
	GS_N_RECORDS
};

/* One window: when it opens (flag OPEN, end 0), when it closes, and again (flag AMENDED) if a loss shows later. Window i starts
 * at i*T + U_i, U_i uniform on [0, T): windows may overlap. A launch belongs to every window with begin <= time < end. */
struct gs_window {
	uint32_t commit;
	uint8_t type;
	uint8_t flags;   /* enum gs_window_flag */
	uint16_t reason; /* enum gs_close; 0 while open */
	uint64_t begin;  /* mono */
	uint64_t end;    /* mono; 0 while open */
	int64_t cupti_minus_mono; /* ns: mono = cupti time - this. Measured at this record's making (open, then close) */
	int64_t unix_minus_mono;
	uint32_t width_us;  /* W as planned; end - begin where it closed early */
	uint32_t period_us; /* T. A count is (T/W) * sum of multiplicities; ALWAYS and detail: T = W */
	uint32_t pair_error_ns; /* the three clocks were read within so many ns */
	uint32_t probability;   /* of stacks, 2^-32 */
	uint32_t id;        /* from 1 on; +1 each */
	uint32_t launches;  /* seen in it; when closed */
};
enum gs_window_flag { GS_WINDOW_OPEN = 1, GS_WINDOW_AMENDED = 2, GS_WINDOW_LOSSY = 4, GS_WINDOW_CLOCK_STEP = 8, GS_WINDOW_DETAIL = 16 };

/* What was called. */
enum gs_call { GS_CALL_KERNEL = 1, GS_CALL_GRAPH, GS_CALL_MEMCPY, GS_CALL_MEMSET };

/* Each launch call in a window, at its outermost entry. */
struct gs_launch {
	uint32_t commit;
	uint8_t type;
	uint8_t flags;      /* enum gs_launch_flag */
	uint16_t call;      /* enum gs_call */
	uint64_t time;      /* mono, API entry */
	uint32_t correlation;
	uint32_t tid;       /* in the writer's PID namespace */
	uint32_t window;    /* newest window that covers it */
	uint32_t weight;    /* 16.16: launches this stack stands for; 0 = no stack was taken */
	uint32_t function;  /* string id of the kernel's mangled name; 0 = not known (graphs, copies) */
	uint32_t context;   /* CUPTI's context id */
	uint32_t cbid;      /* CUPTI callback id; bit 31: driver API, else runtime API */
	uint32_t graph;     /* id of the executable graph; 0 = none or not known */
	uint32_t multiplicity; /* windows that cover it */
	uint32_t reserved[3];
};
enum gs_launch_flag { GS_LAUNCH_SAMPLED = 1, GS_LAUNCH_FIRST = 2 };

/* KERNEL, MEMCPY, MEMSET, SYNC, GRAPH, OVERHEAD. start <= end, both cupti clock and not 0: others are counted, not written. */
struct gs_activity {
	uint32_t commit;
	uint8_t type;
	uint8_t flags; /* enum gs_activity_flag; bits 4-7: multiplicity, the windows that cover its launch (15 = 15 or more) */
	uint16_t kind; /* MEMCPY: copyKind | srcKind << 8 | dstKind << 12; SYNC: its type; OVERHEAD: 1 driver compiler, 2-8 CUPTI's n << 16, 9 its buffer flush; KERNEL: launchType */
	uint64_t start; /* cupti */
	uint64_t end;   /* cupti */
	uint32_t correlation; /* 0 for OVERHEAD of old versions */
	uint32_t window;  /* of its launch: the newest that covers it */
	uint32_t device;  /* the process's ordinal, see DEVICE; SYNC, OVERHEAD: ~0 where not known */
	uint32_t context;
	uint32_t stream;  /* ~0: whole context or not known */
	uint32_t graph;   /* 0 = none */
	union {
		uint64_t node; /* graph node id, 0 = none */
		struct {
			uint32_t device, context; /* PEER: destination of the copy */
		} peer;
	};
	union {
		uint64_t bytes; /* MEMCPY, MEMSET */
		struct {
			uint32_t shape;   /* KERNEL: shape id; 0 = arena full */
			uint32_t channel; /* KERNEL: channelType << 24 | channelID; ~0 = not known */
		} kernel;
		uint64_t event; /* SYNC: event id; OVERHEAD: object id */
	};
};
enum gs_activity_flag { GS_ACTIVITY_PEER = 1, GS_ACTIVITY_DEVICE_LAUNCHED = 2, GS_ACTIVITY_ASYNC = 4, GS_ACTIVITY_LATE = 8 };
#define GS_MULTIPLICITY_SHIFT 4

/* Exact launches of one function, or graph, since `since`; written about once a second where it changed. */
struct gs_count {
	uint32_t commit;
	uint8_t type;
	uint8_t flags;
	uint16_t call;
	uint64_t time;  /* mono: counted up to here */
	uint64_t since; /* mono: counted without a gap from here; a new value starts anew */
	uint64_t count; /* cumulative */
	uint32_t function; /* string id; 0 with call = KERNEL: functions without a place in the table, together */
	uint32_t graph;
	uint32_t reserved[6];
};

struct gs_device {
	uint32_t commit;
	uint8_t type;
	uint8_t flags; /* 1: `uuid` is that of a MIG instance */
	uint16_t reserved0;
	uint32_t ordinal; /* after CUDA_VISIBLE_DEVICES, as activity records number devices */
	uint32_t name;    /* string id */
	uint8_t uuid[16];
	uint32_t pci_domain, pci_bus, pci_device; /* ~0 = not known */
	uint32_t capability; /* 90 = 9.0; 0 = not known */
	uint64_t memory;     /* bytes */
	uint64_t reserved1;
};

struct gs_context {
	uint32_t commit;
	uint8_t type;
	uint8_t flags;
	uint16_t reserved0;
	uint32_t context;
	uint32_t device; /* ordinal */
	uint64_t first;  /* cupti: start of the first record seen in it */
	uint32_t reserved[10];
};

struct gs_exit {
	uint32_t commit;
	uint8_t type;
	uint8_t flags;   /* 1: everything was flushed */
	uint16_t reason; /* enum gs_reason */
	uint64_t time;   /* mono */
	uint64_t records; /* committed, without this one */
	uint64_t drops;   /* all drop_ counters */
	uint32_t reserved[8];
};

/* Arena entries. `size` counts the whole entry, a multiple of 8. */
enum gs_entry_type { GS_ENTRY_STRING = 1, GS_ENTRY_SHAPE };
struct gs_entry {
	uint32_t size;
	uint16_t type;
	uint16_t flags; /* STRING: 1 = cut. SHAPE: 1 = coarse: only the name is set, the arena was three quarters full */
};
struct gs_string {
	struct gs_entry entry;
	uint32_t length; /* bytes of text, without the NUL that follows it */
	uint32_t hash;
	char text[];
};
struct gs_shape {
	struct gs_entry entry;
	uint32_t name; /* string id */
	int32_t grid[3];
	int32_t block[3];
	uint32_t cluster[3]; /* 0 = not known or none */
	uint32_t static_shared; /* bytes */
	uint32_t dynamic_shared;
	uint32_t local_per_thread;
	uint32_t registers;
};

#define GS_STRING_LIMIT 32768

_Static_assert(offsetof(struct gs_control, head) == 128 && offsetof(struct gs_control, tail) == 256, "control page");
_Static_assert(offsetof(struct gs_control, arena_head) == 384 && offsetof(struct gs_control, agent) == 512, "control page");
_Static_assert(offsetof(struct gs_control, library) == 640 && sizeof(struct gs_library) == 512, "control page");
_Static_assert(sizeof(struct gs_layout) == 112 && sizeof(struct gs_agent) == 128, "control page");
_Static_assert(offsetof(struct gs_control, counters) == 2048 && sizeof(struct gs_control) == GS_CONTROL_SIZE, "control page");
_Static_assert(GS_N_COUNTERS <= 256, "counters fit");
_Static_assert(sizeof(struct gs_window) == 64 && sizeof(struct gs_launch) == 64 && sizeof(struct gs_activity) == 64, "records");
_Static_assert(sizeof(struct gs_count) == 64 && sizeof(struct gs_device) == 64, "records");
_Static_assert(sizeof(struct gs_context) == 64 && sizeof(struct gs_exit) == 64, "records");
_Static_assert(sizeof(struct gs_entry) == 8 && sizeof(struct gs_string) == 16 && sizeof(struct gs_shape) == 64, "arena");
_Static_assert(offsetof(struct gs_activity, node) == 48 && offsetof(struct gs_activity, bytes) == 56, "activity");

#endif
