/* SPDX-License-Identifier: Apache-2.0 */
/* Unwind tables of all files that sampled processes map: one per build id, built on a thread of its own, placed in three
 * BPF arrays that are mapped into this process (BPF_F_MMAPABLE), so that placing 10 MB costs no system call and no RCU wait.
 *
 * A file gets its table number when it is first wanted; the table behind the number has no pages until it is built, so rows of
 * `mappings` never change when a table arrives or goes. Publishing: words and rules first, `pages` last. Withdrawing: `pages`
 * to 0, the words are used again after a grace period (a sample takes well under a millisecond).
 *
 * gs_tables_want, _tick and _counters are for one thread (the draining thread) and never wait for a build. */
#ifndef GPUSTROBE_TABLES_H
#define GPUSTROBE_TABLES_H

#include "core.h"
#include "files.h"

struct gs_tables;

struct gs_tables_options {
	int32_t tables_fd; /* BPF_MAP_TYPE_ARRAY of struct gs_table, index = table number, 0 unused */
	int32_t words_fd;  /* BPF_MAP_TYPE_ARRAY of 4096-byte values: one array of u32 words */
	int32_t rules_fd;  /* BPF_MAP_TYPE_ARRAY of struct gs_rule */
	uint32_t max_tables, max_words, max_rules; /* entries; max_tables <= 65536, max_words counts u32, a multiple of 1024 */
	uint32_t build_share; /* thousandths of one core that building may take, averaged over 10 s; 0 = 200 */
};

/* NULL with errno: the maps cannot be mapped, no memory, no thread. */
GS_API struct gs_tables *gs_tables_open(const struct gs_tables_options *options);
GS_API void gs_tables_close(struct gs_tables *t);

/* What to put into gs_mapping.table for a file (rules.h), 0 if there is no number left. Asks for its table to be built if
 * nobody has, and notes that the file is in use. fd is borrowed (duplicated when a build is queued); -1 if it is not open, then a
 * table known by its build id still serves. `key` tells files without a build id apart and must never repeat for other content. */
GS_API uint32_t gs_tables_want(struct gs_tables *t, const struct gs_build_id *build_id, uint64_t key, int fd, uint64_t now_ns);

/* A table of rows that are built already (JIT code): takes them over. Its number for gs_mapping.table, or 0. From any thread. */
struct gs_rows;
GS_API uint32_t gs_tables_put(struct gs_tables *t, struct gs_rows *rows, uint64_t now_ns);
/* It is in use: 1, or 0 if it had to make room and must be put again. */
GS_API int gs_tables_touch(struct gs_tables *t, uint32_t number, uint64_t now_ns);
/* Nobody needs it any more; no mapping may name it by now. */
GS_API void gs_tables_drop(struct gs_tables *t, uint32_t number);

/* Once a second: words past their grace period become free, tables nobody wanted for ten minutes go. */
GS_API void gs_tables_tick(struct gs_tables *t, uint64_t now_ns);

/* Waits until nothing is queued; for tests and `record`. 1 if so within timeout_ms. */
GS_API int gs_tables_settled(struct gs_tables *t, uint32_t timeout_ms);

/* X(name, what a person reads) */
#define GS_TABLE_COUNTERS(X) \
	X(tables_built, "unwind tables built") \
	X(tables_shared, "files served by the table of an equal build id") \
	X(tables_without_rows, "files without unwind information") \
	X(tables_failed, "files whose unwind information could not be read") \
	X(tables_evicted, "unwind tables dropped to make room") \
	X(tables_expired, "unwind tables dropped because nobody mapped the file any more") \
	X(tables_no_room, "unwind tables not placed: no room") \
	X(tables_no_number, "files without a table: all numbers in use") \
	X(tables_no_file, "files without a table: not to be opened") \
	X(tables_queue_full, "builds put off because too many were queued") \
	X(rules_full, "rules not placed: all 65535 in use") \
	X(rows_placed, "unwind rows placed") \
	X(words_used, "words in use (gauge)") \
	X(rules_used, "distinct rules (gauge)") \
	X(build_ns, "nanoseconds spent building")
enum gs_table_counter {
#define X(name, text) GS_TABLE_##name,
	GS_TABLE_COUNTERS(X)
#undef X
	GS_TABLE_COUNTER_COUNT
};

GS_API void gs_tables_counters(struct gs_tables *t, uint64_t counters[GS_TABLE_COUNTER_COUNT]);
GS_API const char *gs_table_counter_name(uint32_t i); /* NULL past the end */

/* The rule that the kernel side would find; for tests. */
GS_API struct gs_rule gs_tables_find(struct gs_tables *t, uint32_t table, uint64_t file_offset);

#endif
