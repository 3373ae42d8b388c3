/* SPDX-License-Identifier: Apache-2.0 */
/* One process as /proc/PID shows it. A descriptor of the directory stays with its process: once that is gone every read below
 * it fails, even if the PID has been given to another. */
#ifndef GPUSTROBE_PROCESS_DIR_H
#define GPUSTROBE_PROCESS_DIR_H

#include <stddef.h>
#include <stdint.h>

#include "mappings.h"

struct gs_proc {
	int root;                /* descriptor of /proc */
	uint64_t tick_ns;        /* unit of stat's start time: 10 ms */
	int64_t boottime_offset; /* ns that our own time namespace adds to it */
};

/* 0 or an errno. */
int gs_proc_open(struct gs_proc *proc, const char *root);
void gs_proc_close(struct gs_proc *proc);

/* A descriptor of the directory, or -errno (ENOENT: no such process). */
int gs_process_open(const struct gs_proc *proc, uint32_t pid);

struct gs_stamp {
	uint64_t start_ticks; /* of the leader */
	uint64_t start_stack; /* 0 = no user memory, or not permitted */
};

/* 0 or an errno (ESRCH: gone). `tid` is asked for start_stack where the leader has none any more. */
int gs_process_stamp(int process, uint32_t tid, struct gs_stamp *out);

/* Whether a start time in ticks is that of the task that started at start_boottime (ns, init time namespace). */
int gs_process_started(const struct gs_proc *proc, uint64_t start_ticks, uint64_t start_boottime);

/* Fields of a /proc/PID/stat text; 0, or EBADMSG when it is not one. comm may hold blanks and parentheses. */
GS_API int gs_parse_stat(const char *text, size_t length, struct gs_stamp *out);

/* The texts of gs_process_details; what cannot be read stays empty. */
void gs_process_read_details(int process, struct gs_process_details *out);

#endif
