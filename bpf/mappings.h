/* SPDX-License-Identifier: Apache-2.0 */
/* Processes and their executable mappings: listed from /proc, published to the BPF maps `procs` and `mappings`, kept for
 * naming raw addresses, also of processes that are gone.
 *
 * Stamp. A gs_process is trusted while start_boottime, exec_vm and start_stack equal the task's. The agent needs no kernel
 * help for them: exec_vm is by definition the pages of all mappings that are executable, not writable and no stack
 * (mm/vma.c is_exec_mapping; /proc/PID/status shows it as VmExe + VmLib), so it is summed over the listing itself and a
 * listing torn by a concurrent mmap never matches the kernel's own sum; start_stack is field 28 of /proc/PID/stat.
 *
 * PID reuse. All of /proc/PID is read below one directory fd, which stays with its process, and field 22 of stat (start
 * time, 10 ms ticks) must equal start_boottime before and after the listing.
 *
 * Not thread-safe: one thread at a time (the draining thread, or Python under its lock). Never blocks on anything but /proc
 * and the files mapped. */
#ifndef GPUSTROBE_MAPPINGS_H
#define GPUSTROBE_MAPPINGS_H

#include <linux/types.h>
#include <stdint.h>

#include "core.h"
#include "files.h"
#include "sample.h"

struct gs_mappings;
struct gs_tables; /* tables.h */

struct gs_mappings_options {
	const char *proc_root;   /* "/proc"; copied */
	int32_t procs_fd;        /* BPF_MAP_TYPE_HASH u32 tgid -> gs_process, or -1 */
	int32_t mappings_fd;     /* BPF_MAP_TYPE_ARRAY of gs_mapping, BPF_F_MMAPABLE (rows are then written without a system call), or -1 */
	uint32_t mapping_rows;   /* max_entries of that array */
	uint32_t max_processes;  /* cached, dead ones included; 0 = 4096. max_entries of procs should be no less */
	uint32_t max_files;      /* 0 = 16384 */
	uint32_t text_only;      /* 1: never PROCMAP_QUERY (tests, comparison) */
	int32_t pythons_fd;      /* BPF_MAP_TYPE_HASH u32 tgid -> gs_python, or 0 */
	uint64_t memory_budget;  /* bytes of user-side rows and process details, 0 = 32 MB; least recently sampled go first */
	struct gs_tables *tables; /* asked for gs_mapping.table of each file listed; borrowed; NULL: table stays 0 */
};

/* NULL with errno on failure (ENOMEM, EINVAL). */
GS_API struct gs_mappings *gs_mappings_open(const struct gs_mappings_options *options);
GS_API void gs_mappings_close(struct gs_mappings *m);

enum gs_listing {
	GS_LISTED = 0,       /* rows are current, and published if they fit */
	GS_LISTING_CACHED,   /* not due yet: the last answer stands */
	GS_LISTING_GONE,     /* no such process (any more) */
	GS_LISTING_REUSED,   /* the PID belongs to another process now */
	GS_LISTING_FAILED,   /* permission, descriptors, memory: counted by class */
};

/* Call for each sample (a hash lookup when nothing is due): keeps "last sampled", and lists when it is due: at the first
 * sample of a process; at NO_TABLE or STALE_TABLE 20 ms after the last listing, at UNRESOLVED 100 ms after it, each doubling
 * up to 5 s as long as listings bring nothing new; and every 5 s while the process is sampled. Listings after the first may
 * take 0.2 % of a core per process (V8 changes exec_vm all the time). Of kernel threads only the details are read, once.
 * now_ns is CLOCK_MONOTONIC. */
GS_API int gs_mappings_sampled(struct gs_mappings *m, const struct gs_sample *sample, uint64_t now_ns);

/* Lists at once. tid (0 = leader) is used where the leader has exited before its threads and shows no mappings. */
GS_API int gs_mappings_refresh(struct gs_mappings *m, uint32_t tgid, uint32_t tid, uint64_t start_boottime, uint64_t now_ns);

/* Once a second: frees blocks past their grace period, looks for processes that are gone (a few of those not sampled for 5 s),
 * forgets the gone after a minute, and withdraws the least recently sampled tables while less than an eighth of the rows is free. */
GS_API void gs_mappings_tick(struct gs_mappings *m, uint64_t now_ns);

enum gs_place_kind {
	GS_PLACE_NO_PROCESS, /* never listed, or forgotten */
	GS_PLACE_UNMAPPED,   /* listed; in no executable mapping */
	GS_PLACE_NATIVE,     /* file_id and file offset */
	GS_PLACE_VDSO,       /* offset in the vdso */
	GS_PLACE_ANONYMOUS,  /* executable memory of no file (JIT): offset is the address */
};

struct gs_place {
	uint32_t kind;
	uint32_t file_id; /* 0 unless NATIVE */
	uint64_t offset;
};

GS_API struct gs_place gs_mappings_normalize(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t address);

/* NATIVE if that file is known from any process, else NO_PROCESS. Refused where two files share (device, inode), as in btrfs
 * snapshots. On overlayfs the kernel's vma shows the inode below, so such hints find nothing. */
GS_API struct gs_place gs_mappings_hint(struct gs_mappings *m, const struct gs_leaf_hint *hint);

/* Next file Python has not been told of in this epoch: 1, or 0 when there is none. The fd passes to the caller. A file that
 * could not be looked at when it was first seen comes a second time, complete, once a later process maps it. */
GS_API int gs_mappings_take_file(struct gs_mappings *m, struct gs_file_record *out);

/* What /proc said about a process at its first listing, and again after exec and when its leader shows another comm; raw:
 * Python parses it once. The bytes of the texts follow each other in `text`, in this order. */
enum gs_detail { GS_DETAIL_STAT, GS_DETAIL_COMM, GS_DETAIL_CMDLINE, GS_DETAIL_CGROUP, GS_DETAIL_EXE, GS_DETAIL_NSPID, GS_DETAIL_COUNT };
#define GS_DETAILS_MAX (1024 + 64 + 4096 + 4096 + 4096 + 256)

struct gs_process_details {
	uint32_t tgid;
	uint32_t uid; /* effective user id; 2^32-1 = not known */
	uint64_t start_boottime;
	uint16_t length[GS_DETAIL_COUNT]; /* bytes; 0 = could not be read, or empty as a kernel thread's cmdline */
	uint8_t cmdline_cut;              /* longer than 4096 bytes */
	uint8_t gone;                     /* 1: gone before it could be read, lengths are 0 */
	uint16_t pad;
	char text[GS_DETAILS_MAX];
};

/* 1 and the details, or 0 if the process was never listed or is forgotten. For a gone process 1, with gone set. */
GS_API int gs_mappings_details(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, struct gs_process_details *out);

/* What is known of the CPython in a process; NULL: none, not found yet, or the process is gone. */
const struct gs_python *gs_mappings_python(const struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime);

/* The caller starts a new epoch: every known file is announced again (GS_FILE_AGAIN, with a fresh fd where a process still
 * maps it), and file ids freed before now may be given again. File ids in rows, words and cached places stay valid. */
/* The unwind rule for an address as the kernel side would find it now: 1; 0 if the process has no such mapping. cfa is GS_CFA_NONE
 * where no row covers the address or its table is not built yet. */
struct gs_rule;
int gs_mappings_rule(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t address, struct gs_rule *rule);

uint64_t gs_mappings_start_stack(const struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime); /* 0 = not known */

/* The function of JIT code that holds an address in anonymous memory, and the view it stands in (both live until the next answer),
 * or NULL: then it is looked for, and gs_mappings_jit_answer tells later. Call for each such frame. */
struct gs_jit_function;
struct gs_jit_view;
const struct gs_jit_function *gs_mappings_jit(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t address,
					      uint64_t now_ns, const struct gs_jit_view **view);
/* What became known since the last call: NULL, or a view to look addresses up in (jit.h). Publishes its tables. */
const struct gs_jit_view *gs_mappings_jit_answer(struct gs_mappings *m, uint64_t now_ns);

GS_API void gs_mappings_new_epoch(struct gs_mappings *m);

/* 1 when the 20 bits of file ids are nearly used up in this epoch: start a new one at the end of the window. */
GS_API int gs_mappings_wants_epoch(const struct gs_mappings *m);

/* X(name, what a person reads) */
#define GS_MAPPING_COUNTERS(X) \
	X(listings, "listings of a process's mappings") \
	X(listings_by_text, "of these, read as text from /proc/PID/maps") \
	X(listings_unchanged, "of these, with nothing new") \
	X(process_gone, "processes gone before their mappings could be listed") \
	X(pid_reused, "PIDs that belonged to another process by then") \
	X(listing_torn, "listings thrown away because the process called exec meanwhile") \
	X(listing_empty, "listings that found no user memory: calling exec, or exiting") \
	X(listing_denied, "listings refused: no permission for this process") \
	X(listing_no_descriptors, "listings refused: this agent has too many open files") \
	X(listing_failed, "listings failed for another reason") \
	X(bad_maps_line, "lines of /proc/PID/maps that could not be read") \
	X(processes_evicted, "processes forgotten to stay within the bound") \
	X(processes_ended, "processes seen to be gone") \
	X(rows_no_room, "mapping tables not published: no free rows") \
	X(rows_left_out, "mappings left out of a table of more than 4096") \
	X(publish_failed, "mapping tables not published: the BPF map refused") \
	X(files_found, "files seen mapped for the first time") \
	X(files_replaced, "files whose content changed under the same inode") \
	X(files_evicted, "files forgotten to stay within the bound") \
	X(files_no_room, "files without an id: table or ids used up") \
	X(open_by_path, "files opened by path because map_files did not work") \
	X(open_gone, "files not opened: process or file gone") \
	X(open_denied, "files not opened: no permission") \
	X(open_no_descriptors, "files not opened: too many open files") \
	X(open_not_regular, "mapped devices and other special files, not opened") \
	X(open_failed, "files not opened for another reason") \
	X(build_id_by_kernel, "build ids the kernel read because the file could not be opened") \
	X(python_found, "processes whose CPython frames can be walked") \
	X(python_unsupported, "processes with a CPython that cannot be walked: version or build") \
	X(jit_asked, "looks for code that a process compiled at run time") \
	X(jit_files_searched, "files searched for GDB's JIT interface") \
	X(jit_lists_read, "lists of JIT code read") \
	X(jit_lists_broken, "lists of JIT code that broke off: changed meanwhile, or damaged") \
	X(jit_lists_cut, "lists of JIT code longer than the bound") \
	X(jit_objects, "JIT objects read") \
	X(jit_objects_refused, "JIT objects that could not be read") \
	X(jit_no_room, "JIT objects left out to stay within the bound") \
	X(jit_tables, "unwind tables built for JIT code") \
	X(jit_without_rows, "JIT code without unwind information") \
	X(jit_queue_full, "looks put off because too many were waiting") \
	X(hint_found, "leaf frames of gone processes named by the kernel's hint") \
	X(hint_unknown, "hints for files never seen") \
	X(hint_ambiguous, "hints that fit two files")
enum gs_mapping_counter {
#define X(name, text) GS_MAPPING_##name,
	GS_MAPPING_COUNTERS(X)
#undef X
	GS_MAPPING_COUNTER_COUNT
};

/* counters[i] counts what gs_mapping_counter_name(i) says since open. */
GS_API const uint64_t *gs_mappings_counters(const struct gs_mappings *m);
GS_API const char *gs_mapping_counter_name(uint32_t i); /* NULL past the end */

/* For tests and `doctor`: up to `room` rows of a cached process; returns how many it has, -1 if it is not cached. */
struct gs_row {
	uint64_t start;
	uint64_t end;
	uint64_t file_offset;
	uint64_t inode;
	uint32_t device;
	uint32_t file_id;
	uint32_t kind; /* enum gs_place_kind */
	uint32_t flags; /* 1 = writable */
};
GS_API int gs_mappings_rows(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, struct gs_row *out, uint32_t room);

#endif
