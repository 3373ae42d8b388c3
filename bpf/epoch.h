/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of one epoch: frames, stacks, processes and threads, each given an id the first time it is seen. Append-only and
 * bounded; when one is nearly full at the end of a window the core starts the next epoch. Tables grow as they fill. */
#ifndef GPUSTROBE_EPOCH_H
#define GPUSTROBE_EPOCH_H

#include "codes.h"
#include "jit_names.h"
#include "core.h"
#include "index.h"

struct gs_limits {
	uint32_t frames, stacks, stack_frames, threads, processes;
};

struct gs_process_seen {
	uint64_t start_boottime;
	uint64_t cgroup_id;
	uint64_t renamed_ns; /* when it last got a new id because its leader changed name */
	uint32_t tgid;
	uint32_t details_length;
	char *details; /* /proc as it was when the id was given (struct gs_process_details, cut); NULL once taken */
	char comm[16];
};

struct gs_epoch {
	uint64_t number;
	uint32_t windows; /* that wait and carry its ids */
	struct gs_limits limits;

	struct gs_frame *frames;
	uint32_t n_frames, room_frames, taken_frames;
	struct gs_index frame_index;

	uint32_t *stack_frames; /* of all stacks, one after the other */
	uint32_t n_stack_frames, room_stack_frames;
	uint32_t *stack_ends; /* of each stack in stack_frames */
	uint32_t n_stacks, room_stacks, taken_stacks;
	struct gs_index stack_index;

	struct gs_process_seen *processes;
	uint32_t n_processes, room_processes, taken_processes;
	struct gs_index process_index;

	struct gs_thread_record *threads;
	uint32_t n_threads, room_threads, taken_threads;
	struct gs_index thread_index;

	struct gs_file_record *files; /* not taken yet, each owning its fd */
	uint32_t n_files, room_files;

	struct gs_codes codes;
	struct gs_jit_names jits;
};

struct gs_epoch *gs_epoch_new(uint64_t number, const struct gs_limits *limits); /* NULL: no memory */
void gs_epoch_free(struct gs_epoch *e);

/* Ids, or GS_NO_ID when a bound is reached (or memory ran out). */
uint32_t gs_epoch_frame(struct gs_epoch *e, const struct gs_frame *frame);
uint32_t gs_epoch_stack(struct gs_epoch *e, const uint32_t *frames, uint32_t n);
uint32_t gs_epoch_thread(struct gs_epoch *e, uint32_t process_id, uint32_t tid, const char comm[16], uint32_t wait);
uint32_t gs_epoch_find_process(const struct gs_epoch *e, uint32_t tgid, uint64_t start_boottime);
/* A new life of a PID, or with old != GS_NO_ID one that goes on under another name. */
uint32_t gs_epoch_add_process(struct gs_epoch *e, const struct gs_process_seen *process, uint32_t old);

/* 1 when a table is so full that the next window might not fit. */
int gs_epoch_nearly_full(const struct gs_epoch *e);
uint64_t gs_epoch_bytes(const struct gs_epoch *e);

/* Room for one more item in a growing array: 0, or -1 (no memory, or at the limit). */
int gs_grow(void **items, uint32_t *room, uint64_t need, uint32_t limit, uint32_t item_bytes);

#endif
