/* SPDX-License-Identifier: Apache-2.0 */
/* Which sampled processes run CPython, published to the BPF map `pythons` so that the kernel side can walk their frames.
 * Part of mappings.c: told of each listing, asked again at samples while an interpreter is still starting. */
#ifndef GPUSTROBE_PYTHONS_H
#define GPUSTROBE_PYTHONS_H

#include "mapped_file.h"
#include "process_cache.h"
#include "python_runtime.h"

struct gs_pythons;

/* map_fd: BPF_MAP_TYPE_HASH u32 tgid -> gs_python, or -1. counters: indexed by enum gs_mapping_counter. NULL: no memory. */
struct gs_pythons *gs_pythons_open(int map_fd, uint64_t *counters);
void gs_pythons_close(struct gs_pythons *p);

/* A file that may hold an interpreter, seen in a listing: looks into it once. 1 if it does. */
int gs_pythons_look(struct gs_pythons *p, uint32_t file_id, int is_program, const struct gs_sight *sight);

/* After a listing, and again at samples while GS_PYTHON_NOT_YET: reads the process's memory and publishes. */
void gs_pythons_attach(struct gs_pythons *p, struct gs_cached *process, uint64_t now_ns);
int gs_pythons_due(const struct gs_cached *process, uint64_t now_ns);

void gs_pythons_forget(struct gs_pythons *p, struct gs_cached *process);
void gs_pythons_new_epoch(struct gs_pythons *p); /* file ids may be given to other files now */

#endif
