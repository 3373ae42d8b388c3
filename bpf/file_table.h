/* SPDX-License-Identifier: Apache-2.0 */
/* The bounded table behind files.h: id for a mapped file, and what Python has not been told of. */
#ifndef GPUSTROBE_FILE_TABLE_H
#define GPUSTROBE_FILE_TABLE_H

#include "mapped_file.h"
#include "process_dir.h"

#define GS_FILE_IDS (1u << GS_FILE_BITS) /* 0 is no file */

struct gs_files;

/* counters: indexed by enum gs_mapping_counter. NULL: no memory. */
struct gs_files *gs_files_open(uint32_t max_files, const struct gs_proc *proc, uint64_t *counters);
void gs_files_close(struct gs_files *files);

/* The id of the file behind a mapping; 0 where frames must stay raw: no id left, a device, or unlinked memory that is no ELF
 * file (memfd, /dev/zero: where JIT compilers put code, named by address and not by file). */
uint32_t gs_files_identify(struct gs_files *files, const struct gs_sight *sight);

/* While held by a process's rows a file is not evicted. */
void gs_files_hold(struct gs_files *files, uint32_t file_id);
void gs_files_release(struct gs_files *files, uint32_t file_id);

/* The unwind table number of a file (tables.h); lends its descriptor, opened again once a minute in case the table is gone. */
uint32_t gs_files_table(struct gs_files *files, struct gs_tables *tables, uint32_t file_id, const struct gs_sight *sight, uint64_t now_ns);

/* Id of the one file known as (device, inode); 0 if there is none or more than one. */
uint32_t gs_files_by_inode(struct gs_files *files, uint32_t device, uint64_t inode, int *ambiguous);

/* A living process that maps this file: 0 and start, end, pid, start_boottime filled, else -1. */
typedef int gs_find_sight(void *context, uint32_t file_id, struct gs_sight *out);
int gs_files_take(struct gs_files *files, struct gs_file_record *out, gs_find_sight *find, void *context);

void gs_files_new_epoch(struct gs_files *files);
int gs_files_wants_epoch(const struct gs_files *files);

#endif
