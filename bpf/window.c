/* SPDX-License-Identifier: Apache-2.0 */
#include "window.h"

#include <linux/types.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"

struct row {
	uint32_t stack, thread;
};

static int same_row(const void *table, uint32_t id, const void *wanted)
{
	const struct gs_window_rows *rows = table;
	const struct row *want = wanted;

	return rows->stack[id] == want->stack && rows->thread[id] == want->thread;
}

static int grow_rows(struct gs_window_rows *rows)
{
	uint32_t room[3] = { rows->room, rows->room, rows->room };

	if (gs_grow((void **)&rows->stack, &room[0], rows->n + 1ULL, rows->limit, sizeof(uint32_t)) ||
	    gs_grow((void **)&rows->thread, &room[1], rows->n + 1ULL, rows->limit, sizeof(uint32_t)) ||
	    gs_grow((void **)&rows->value, &room[2], rows->n + 1ULL, rows->limit, sizeof(uint64_t)))
		return -1; /* an array that did grow is larger than `room` says, which harms nothing */
	rows->room = room[2];
	return gs_index_reserve(&rows->index);
}

int gs_window_rows_add(struct gs_window_rows *rows, uint32_t stack, uint32_t thread, uint64_t value)
{
	struct row wanted = { stack, thread };
	uint32_t hash = (uint32_t)gs_mix(gs_mix(2, stack), thread);
	uint32_t id = gs_index_find(&rows->index, hash, same_row, rows, &wanted);

	if (id == GS_NO_ID) {
		if (grow_rows(rows))
			return -1;
		id = rows->n++;
		rows->stack[id] = stack;
		rows->thread[id] = thread;
		rows->value[id] = 0;
		gs_index_add(&rows->index, hash, id);
	}
	rows->value[id] += value;
	return 0;
}

static int grow_marked(struct gs_window_rows *rows)
{
	uint32_t room[4] = { rows->room, rows->room, rows->room, rows->room };

	if (gs_grow((void **)&rows->stack, &room[0], rows->n + 1ULL, rows->limit, sizeof(uint32_t)) ||
	    gs_grow((void **)&rows->thread, &room[1], rows->n + 1ULL, rows->limit, sizeof(uint32_t)) ||
	    gs_grow((void **)&rows->value, &room[2], rows->n + 1ULL, rows->limit, sizeof(uint64_t)) ||
	    gs_grow((void **)&rows->mark, &room[3], rows->n + 1ULL, rows->limit, sizeof(uint64_t)))
		return -1;
	rows->room = room[3];
	return 0;
}

int gs_window_rows_append(struct gs_window_rows *rows, uint32_t stack, uint32_t thread, uint64_t value, uint64_t mark)
{
	uint32_t id = rows->n;

	if (grow_marked(rows))
		return -1;
	rows->stack[id] = stack;
	rows->thread[id] = thread;
	rows->value[id] = value;
	rows->mark[id] = mark;
	rows->n++;
	return 0;
}

void gs_window_rows_free(struct gs_window_rows *rows)
{
	free(rows->mark);
	rows->mark = NULL;
	free(rows->stack);
	free(rows->thread);
	free(rows->value);
	gs_index_free(&rows->index);
	rows->stack = rows->thread = NULL;
	rows->value = NULL;
	rows->n = rows->room = 0;
}

static void forget_first(struct gs_queue *q)
{
	struct gs_ended *oldest = &q->ended[q->first];

	gs_window_rows_free(&oldest->rows);
	if (!--oldest->epoch->windows)
		gs_epoch_free(oldest->epoch);
	memset(oldest, 0, sizeof(*oldest));
	q->first = (q->first + 1) % q->size;
	q->n--;
}

static void add_books(struct gs_books *to, const struct gs_books *from)
{
	to->produced += from->produced;
	to->idle += from->idle;
	to->filtered += from->filtered;
	to->delivered += from->delivered;
	for (int i = 0; i < GS_DROP_COUNT; i++)
		to->drops[i] += from->drops[i];
}

static struct gs_books *heir_of_first(struct gs_queue *q)
{
	uint32_t type = q->ended[q->first].type;

	for (uint32_t i = 1; i < q->n; i++) {
		struct gs_ended *ended = &q->ended[(q->first + i) % q->size];

		if (ended->type == type)
			return &ended->books;
	}
	return &q->owed[type];
}

/* The books of a window nobody will see pass on to the next of its type, so that their sum stays true. */
static void drop_first(struct gs_queue *q)
{
	struct gs_books lost = q->ended[q->first].books;

	lost.drops[GS_DROP_window_late] += lost.delivered;
	lost.delivered = 0;
	add_books(heir_of_first(q), &lost);
	forget_first(q);
}

static uint32_t epochs_waiting(const struct gs_queue *q)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < q->n; i++)
		if (!i || q->ended[(q->first + i) % q->size].epoch != q->ended[(q->first + i - 1) % q->size].epoch)
			n++;
	return n;
}

void gs_queue_push(struct gs_queue *q, const struct gs_ended *ended)
{
	struct gs_ended entry = *ended;

	while (q->n == q->size || (q->n && epochs_waiting(q) >= q->max_epochs &&
				   q->ended[(q->first + q->n - 1) % q->size].epoch != entry.epoch))
		drop_first(q);
	add_books(&entry.books, &q->owed[entry.type]);
	memset(&q->owed[entry.type], 0, sizeof(q->owed[entry.type]));
	q->ended[(q->first + q->n) % q->size] = entry;
	q->n++;
}

static void *copy(const void *from, uint64_t n, uint32_t item_bytes, int *failed)
{
	void *to = malloc(n * item_bytes + 1);

	if (!to)
		*failed = 1;
	else if (n)
		memcpy(to, from, n * item_bytes);
	return to;
}

static void copy_stacks(const struct gs_epoch *e, struct gs_window *out, int *failed)
{
	uint32_t start = out->first_stack ? e->stack_ends[out->first_stack - 1] : 0;
	uint32_t last = out->first_stack + out->n_stacks;
	uint32_t end = last ? e->stack_ends[last - 1] : 0;

	out->n_stack_frames = end - start;
	out->stack_frames = copy(e->stack_frames ? e->stack_frames + start : NULL, end - start, sizeof(uint32_t), failed);
	out->stack_ends = copy(e->stack_ends ? e->stack_ends + out->first_stack : NULL, out->n_stacks, sizeof(uint32_t), failed);
	for (uint32_t i = 0; out->stack_ends && i < out->n_stacks; i++)
		out->stack_ends[i] -= start;
}

void gs_window_details(struct gs_window *window, uint32_t i, const void *details, uint32_t length)
{
	char *grown = realloc(window->details, (size_t)window->details_length + length);

	if (!grown)
		return;
	memcpy(grown + window->details_length, details, length);
	window->processes[i].details = window->details_length;
	window->processes[i].details_length = length;
	window->details = grown;
	window->details_length += length;
}

static void copy_processes(const struct gs_epoch *e, struct gs_window *out, int *failed)
{
	out->processes = malloc(sizeof(*out->processes) * (out->n_processes + 1));
	if (!out->processes) {
		*failed = 1;
		return;
	}
	for (uint32_t i = 0; i < out->n_processes; i++) {
		const struct gs_process_seen *seen = &e->processes[e->taken_processes + i];
		struct gs_process_record *record = &out->processes[i];

		memset(record, 0, sizeof(*record));
		record->process_id = e->taken_processes + i;
		record->tgid = seen->tgid;
		record->start_boottime = seen->start_boottime;
		record->cgroup_id = seen->cgroup_id;
		memcpy(record->comm, seen->comm, sizeof(record->comm));
		if (seen->details)
			gs_window_details(out, i, seen->details, seen->details_length);
	}
}

static void copy_new(const struct gs_ended *ended, struct gs_window *out, int *failed)
{
	const struct gs_epoch *e = ended->epoch;

	out->first_frame = e->taken_frames;
	out->n_frames = ended->n_frames - e->taken_frames;
	out->first_stack = e->taken_stacks;
	out->n_stacks = ended->n_stacks - e->taken_stacks;
	out->n_processes = ended->n_processes - e->taken_processes;
	out->n_threads = ended->n_threads - e->taken_threads;
	out->n_files = e->n_files;
	out->frames = copy(e->frames ? e->frames + out->first_frame : NULL, out->n_frames, sizeof(*out->frames), failed);
	copy_stacks(e, out, failed);
	copy_processes(e, out, failed);
	out->threads = copy(e->threads ? e->threads + e->taken_threads : NULL, out->n_threads, sizeof(*out->threads), failed);
	out->files = copy(e->files, out->n_files, sizeof(*out->files), failed);
}

int gs_queue_pop(struct gs_queue *q, struct gs_window *out)
{
	struct gs_ended *oldest = &q->ended[q->first];
	struct gs_epoch *e = oldest->epoch;
	int failed = 0;

	if (!q->n)
		return 0;
	memset(out, 0, sizeof(*out));
	out->epoch = e->number;
	out->start_unix = oldest->start_unix;
	out->duration = oldest->duration;
	out->books = oldest->books;
	out->sample_type = oldest->type;
	copy_new(oldest, out, &failed);
	if (failed) {
		gs_window_free(out);
		return -1;
	}
	out->n_rows = oldest->rows.n;
	out->stack = oldest->rows.stack;
	out->thread = oldest->rows.thread;
	out->value = oldest->rows.value;
	out->mark = oldest->rows.mark;
	oldest->rows.stack = oldest->rows.thread = NULL; /* they are the taker's now */
	oldest->rows.value = oldest->rows.mark = NULL;
	for (uint32_t i = e->taken_processes; i < oldest->n_processes; i++) {
		free(e->processes[i].details);
		e->processes[i].details = NULL;
	}
	e->taken_frames = oldest->n_frames;
	e->taken_stacks = oldest->n_stacks;
	e->taken_processes = oldest->n_processes;
	e->taken_threads = oldest->n_threads;
	free(e->files);
	e->files = NULL;
	e->n_files = e->room_files = 0;
	out->codes = e->codes.records; /* the taker's now */
	out->codes_length = e->codes.length;
	e->codes.records = NULL;
	e->codes.length = e->codes.room = 0;
	out->jits = e->jits.records;
	out->jits_length = e->jits.length;
	e->jits.records = NULL;
	e->jits.length = e->jits.room = 0;
	forget_first(q);
	return 1;
}

void gs_queue_free(struct gs_queue *q)
{
	while (q->n)
		forget_first(q);
	free(q->ended);
	memset(q, 0, sizeof(*q));
}

void gs_window_free(struct gs_window *window)
{
	free(window->stack);
	free(window->thread);
	free(window->value);
	free(window->mark);
	free(window->frames);
	free(window->stack_ends);
	free(window->stack_frames);
	free(window->processes);
	free(window->threads);
	free(window->files);
	free(window->details);
	free(window->codes);
	free(window->jits);
	memset(window, 0, sizeof(*window));
}
