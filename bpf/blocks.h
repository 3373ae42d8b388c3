/* SPDX-License-Identifier: Apache-2.0 */
/* The published tables: blocks of rows in the BPF array `mappings`, and the entries of `procs` that point at them.
 * A block that was published is reused no sooner than GS_BLOCKS_GRACE_NS after its entry is gone: a program that read the entry
 * just before may still be searching the block. It runs for microseconds; a second also covers a vCPU that is not scheduled. */
#ifndef GPUSTROBE_BLOCKS_H
#define GPUSTROBE_BLOCKS_H

#include <linux/types.h>
#include <stdint.h>

#include "sample.h"

#define GS_BLOCKS_GRACE_NS 1000000000ULL
#define GS_BLOCKS_NONE UINT32_MAX

struct gs_extent {
	uint32_t first;
	uint32_t count;
};

struct gs_retired {
	struct gs_extent extent;
	uint64_t free_at;
};

struct gs_blocks {
	int procs_fd;
	int mappings_fd;
	uint32_t total;
	uint32_t free_rows;
	struct gs_mapping *mapped; /* the array itself, if the map is mmapable */
	struct gs_extent *free;    /* sorted by first, never adjacent */
	uint32_t free_count, free_room;
	struct gs_retired *retired; /* in order of free_at */
	uint32_t retired_count, retired_room;
};

int gs_blocks_open(struct gs_blocks *b, int procs_fd, int mappings_fd, uint32_t total);
void gs_blocks_close(struct gs_blocks *b);

/* First row of `count` free ones in a sequence, or GS_BLOCKS_NONE. */
uint32_t gs_blocks_take(struct gs_blocks *b, uint32_t count);

/* 0 or an errno. */
int gs_blocks_write(struct gs_blocks *b, uint32_t first, const struct gs_mapping *from, uint32_t count);

void gs_blocks_retire(struct gs_blocks *b, uint32_t first, uint32_t count, uint64_t now_ns);
void gs_blocks_reap(struct gs_blocks *b, uint64_t now_ns);

/* Entries of procs. 0 or an errno. */
int gs_blocks_publish(struct gs_blocks *b, uint32_t tgid, const struct gs_process *process);
void gs_blocks_unpublish(struct gs_blocks *b, uint32_t tgid);

#endif
