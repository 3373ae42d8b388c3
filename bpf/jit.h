/* SPDX-License-Identifier: Apache-2.0 */
/* What sampled processes compiled at run time and registered with GDB's JIT interface: unwind tables and names for it.
 *
 * Looking for the interface in 350 MB of library, reading lists and building rows takes up to 0.2 s, so a thread of its own does
 * it. The draining thread asks when it meets code in anonymous memory that it cannot name, and later finds the answer, a view. */
#ifndef GPUSTROBE_JIT_H
#define GPUSTROBE_JIT_H

#include "mappings.h"

struct gs_jits;

struct gs_jit_function {
	uint64_t start, end;
	uint32_t object; /* number of the image it came in: code that takes the place of other code has another one */
	uint32_t name, module; /* offsets in gs_jit_view.text, NUL terminated */
};

struct gs_jit_extent {
	uint64_t low, high;
	uint64_t signature; /* of the objects in it */
	uint32_t table;     /* rows by address; 0 = none */
};

/* What is known of one process; not changed any more once it is handed over. */
struct gs_jit_view {
	struct gs_jit_view *next; /* answers waiting */
	uint32_t tgid;
	uint64_t start_boottime;
	uint32_t has_list; /* a file of it brings the interface */
	uint64_t spent_ns; /* CPU time it took */
	uint32_t changed;  /* since the last answer; if not, all below is empty */
	uint32_t n_functions, n_extents;
	struct gs_jit_function *functions; /* by start, not overlapping */
	struct gs_jit_extent *extents;     /* by low, not overlapping */
	char *text;
	uint64_t counts[GS_MAPPING_COUNTER_COUNT];
};

/* NULL: no memory, no thread. tables may be NULL: names only. */
struct gs_jits *gs_jits_open(const char *proc_root, struct gs_tables *tables);
void gs_jits_close(struct gs_jits *j);

/* 1 if it will be answered. `rebuild`: mappings or tables changed, so an answer is wanted even if the lists did not. */
int gs_jits_ask(struct gs_jits *j, uint32_t tgid, uint64_t start_boottime, const struct gs_row *rows, uint32_t count, int rebuild);
struct gs_jit_view *gs_jits_answer(struct gs_jits *j); /* NULL: none waiting */
void gs_jits_forget(struct gs_jits *j, uint32_t tgid, uint64_t start_boottime);

const struct gs_jit_function *gs_jit_find(const struct gs_jit_view *view, uint64_t address);
/* The table for a mapping; *several: it holds code of more than one extent, so they ought to be one. */
uint32_t gs_jit_table(const struct gs_jit_view *view, uint64_t start, uint64_t end, int *several);
void gs_jit_view_free(struct gs_jit_view *view);

#endif
