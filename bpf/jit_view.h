/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of jit.c: what its thread remembers of a process, and the view made of it. */
#ifndef GPUSTROBE_JIT_VIEW_H
#define GPUSTROBE_JIT_VIEW_H

#include "jit.h"
#include "jit_object.h"

#define GS_JIT_MAX_LISTS 4 /* libraries with an LLVM of their own in one process */
#define GS_JIT_MODULE_MAX 64

struct gs_jit_list {
	uint64_t at; /* address of the descriptor */
	char module[GS_JIT_MODULE_MAX];
	struct gs_jit_object *objects; /* newest first */
	uint32_t n_objects;
};

struct gs_jit_process {
	struct gs_jit_process *next;
	uint32_t tgid;
	uint64_t start_boottime;
	struct gs_jit_list lists[GS_JIT_MAX_LISTS];
	uint64_t states[GS_JIT_MAX_LISTS]; /* of the descriptors when they were read */
	uint32_t n_lists;
	uint32_t read_again; /* a list broke off */
	struct gs_jit_extent *extents; /* of the last view, so that tables of what did not change stay */
	uint32_t n_extents;
};

/* Fills in view from the lists of p and puts tables. rows: the process's mappings. */
void gs_jit_make_view(struct gs_jit_process *p, const struct gs_row *rows, uint32_t count, struct gs_tables *tables,
		      struct gs_jit_view *view);

#endif
