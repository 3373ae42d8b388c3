/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the running window and the queue of those that wait to be taken. */
#ifndef GPUSTROBE_WINDOW_H
#define GPUSTROBE_WINDOW_H

#include "core.h"
#include "epoch.h"

struct gs_window_rows {
	uint32_t *stack, *thread;
	uint64_t *value;
	uint64_t *mark; /* NULL: rows of one stack and thread are summed */
	uint32_t n, room, limit;
	struct gs_index index;
};

/* 0, or -1 when the window has no room. */
int gs_window_rows_add(struct gs_window_rows *rows, uint32_t stack, uint32_t thread, uint64_t value);
/* A row of its own. 0, or -1 when the window has no room. */
int gs_window_rows_append(struct gs_window_rows *rows, uint32_t stack, uint32_t thread, uint64_t value, uint64_t mark);
void gs_window_rows_free(struct gs_window_rows *rows);

/* A window that has ended. The epoch's tables are read when it is taken, up to the lengths they had when it ended. */
struct gs_ended {
	struct gs_epoch *epoch;
	struct gs_window_rows rows;
	struct gs_books books;
	uint32_t type; /* enum gs_sample_type */
	int64_t start_unix;
	uint64_t duration;
	uint32_t n_frames, n_stacks, n_processes, n_threads;
};

struct gs_queue {
	struct gs_ended *ended; /* ring of `size` */
	uint32_t size, first, n;
	uint32_t max_epochs; /* waiting at once: their tables stay in memory */
	struct gs_books owed[GS_TYPE_COUNT]; /* of windows that went when no other of their type was waiting */
};

/* Appends; the oldest go where there is no room, their samples counted as window_late in the next window's books. */
void gs_queue_push(struct gs_queue *q, const struct gs_ended *ended);
/* The oldest into *out, with everything new; 1, 0 if there is none, -1 without memory (it stays queued). */
int gs_queue_pop(struct gs_queue *q, struct gs_window *out);
void gs_queue_free(struct gs_queue *q);

/* Gives the i-th process of the window these details, instead of any it has. Without memory it keeps those. */
void gs_window_details(struct gs_window *window, uint32_t i, const void *details, uint32_t length);

#endif
