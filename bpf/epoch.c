/* SPDX-License-Identifier: Apache-2.0 */
#include "epoch.h"

#include <linux/types.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

int gs_grow(void **items, uint32_t *room, uint64_t need, uint32_t limit, uint32_t item_bytes)
{
	if (need <= *room)
		return 0;
	if (need > limit)
		return -1;

	uint64_t want = *room ? *room + *room / 2 : 256;

	if (want < need)
		want = need;
	if (want > limit)
		want = limit;

	void *grown = realloc(*items, want * item_bytes);

	if (!grown)
		return -1;
	*items = grown;
	*room = (uint32_t)want;
	return 0;
}

struct gs_epoch *gs_epoch_new(uint64_t number, const struct gs_limits *limits)
{
	struct gs_epoch *e = calloc(1, sizeof(*e));

	if (e) {
		e->number = number;
		e->limits = *limits;
	}
	return e;
}

void gs_epoch_free(struct gs_epoch *e)
{
	if (!e)
		return;
	for (uint32_t i = 0; i < e->n_files; i++)
		if (e->files[i].fd >= 0)
			close(e->files[i].fd);
	free(e->files);
	free(e->frames);
	free(e->stack_frames);
	free(e->stack_ends);
	for (uint32_t i = 0; i < e->n_processes; i++)
		free(e->processes[i].details);
	free(e->processes);
	free(e->threads);
	gs_codes_free(&e->codes);
	gs_jit_names_free(&e->jits);
	gs_index_free(&e->frame_index);
	gs_index_free(&e->stack_index);
	gs_index_free(&e->process_index);
	gs_index_free(&e->thread_index);
	free(e);
}

static int same_frame(const void *table, uint32_t id, const void *wanted)
{
	const struct gs_frame *have = &((const struct gs_epoch *)table)->frames[id], *want = wanted;

	return have->address == want->address && have->detail == want->detail && have->kind == want->kind && have->owner == want->owner;
}

uint32_t gs_epoch_frame(struct gs_epoch *e, const struct gs_frame *frame)
{
	uint32_t hash = (uint32_t)gs_mix(gs_mix(gs_mix(frame->kind, frame->owner), frame->address), frame->detail);
	uint32_t id = gs_index_find(&e->frame_index, hash, same_frame, e, frame);

	if (id != GS_NO_ID)
		return id;
	if (gs_grow((void **)&e->frames, &e->room_frames, e->n_frames + 1ULL, e->limits.frames, sizeof(*frame)) ||
	    gs_index_reserve(&e->frame_index))
		return GS_NO_ID;
	id = e->n_frames++;
	e->frames[id] = *frame;
	gs_index_add(&e->frame_index, hash, id);
	return id;
}

struct stack {
	const uint32_t *frames;
	uint32_t n;
};

static uint32_t stack_start(const struct gs_epoch *e, uint32_t id)
{
	return id ? e->stack_ends[id - 1] : 0;
}

static int same_stack(const void *table, uint32_t id, const void *wanted)
{
	const struct gs_epoch *e = table;
	const struct stack *want = wanted;
	uint32_t start = stack_start(e, id);

	if (e->stack_ends[id] - start != want->n)
		return 0;
	return !want->n || !memcmp(e->stack_frames + start, want->frames, want->n * sizeof(uint32_t));
}

uint32_t gs_epoch_stack(struct gs_epoch *e, const uint32_t *frames, uint32_t n)
{
	struct stack wanted = { frames, n };
	uint64_t mixed = n;

	for (uint32_t i = 0; i < n; i++)
		mixed = gs_mix(mixed, frames[i]);

	uint32_t id = gs_index_find(&e->stack_index, (uint32_t)mixed, same_stack, e, &wanted);

	if (id != GS_NO_ID)
		return id;
	if (gs_grow((void **)&e->stack_ends, &e->room_stacks, e->n_stacks + 1ULL, e->limits.stacks, sizeof(uint32_t)) ||
	    gs_grow((void **)&e->stack_frames, &e->room_stack_frames, (uint64_t)e->n_stack_frames + n, e->limits.stack_frames,
		    sizeof(uint32_t)) ||
	    gs_index_reserve(&e->stack_index))
		return GS_NO_ID;
	id = e->n_stacks++;
	if (n) /* an empty stack: kernel thread without kernel stacks */
		memcpy(e->stack_frames + e->n_stack_frames, frames, n * sizeof(uint32_t));
	e->n_stack_frames += n;
	e->stack_ends[id] = e->n_stack_frames;
	gs_index_add(&e->stack_index, (uint32_t)mixed, id);
	return id;
}

static int same_thread(const void *table, uint32_t id, const void *wanted)
{
	const struct gs_thread_record *have = &((const struct gs_epoch *)table)->threads[id], *want = wanted;

	return have->process_id == want->process_id && have->tid == want->tid && have->wait == want->wait && !memcmp(have->comm, want->comm, 16);
}

uint32_t gs_epoch_thread(struct gs_epoch *e, uint32_t process_id, uint32_t tid, const char comm[16], uint32_t wait)
{
	struct gs_thread_record wanted = { .thread_id = e->n_threads, .process_id = process_id, .tid = tid, .wait = wait };
	uint64_t words[2];

	memcpy(wanted.comm, comm, 16);
	memcpy(words, comm, 16);

	uint32_t hash = (uint32_t)gs_mix(gs_mix(gs_mix(gs_mix(process_id, tid), words[0]), words[1]), wait);
	uint32_t id = gs_index_find(&e->thread_index, hash, same_thread, e, &wanted);

	if (id != GS_NO_ID)
		return id;
	if (gs_grow((void **)&e->threads, &e->room_threads, e->n_threads + 1ULL, e->limits.threads, sizeof(wanted)) ||
	    gs_index_reserve(&e->thread_index))
		return GS_NO_ID;
	id = e->n_threads++;
	e->threads[id] = wanted;
	gs_index_add(&e->thread_index, hash, id);
	return id;
}

static uint32_t process_hash(uint32_t tgid, uint64_t start_boottime)
{
	return (uint32_t)gs_mix(gs_mix(1, tgid), start_boottime);
}

static int same_process(const void *table, uint32_t id, const void *wanted)
{
	const struct gs_process_seen *have = &((const struct gs_epoch *)table)->processes[id], *want = wanted;

	return have->tgid == want->tgid && have->start_boottime == want->start_boottime;
}

uint32_t gs_epoch_find_process(const struct gs_epoch *e, uint32_t tgid, uint64_t start_boottime)
{
	struct gs_process_seen wanted = { .tgid = tgid, .start_boottime = start_boottime };

	return gs_index_find(&e->process_index, process_hash(tgid, start_boottime), same_process, e, &wanted);
}

uint32_t gs_epoch_add_process(struct gs_epoch *e, const struct gs_process_seen *process, uint32_t old)
{
	uint32_t hash = process_hash(process->tgid, process->start_boottime);

	if (gs_grow((void **)&e->processes, &e->room_processes, e->n_processes + 1ULL, e->limits.processes, sizeof(*process)) ||
	    gs_index_reserve(&e->process_index))
		return GS_NO_ID;

	uint32_t id = e->n_processes++;

	e->processes[id] = *process;
	if (old == GS_NO_ID)
		gs_index_add(&e->process_index, hash, id);
	else
		gs_index_replace(&e->process_index, hash, old, id);
	return id;
}

/* A quarter stays free for the next window. */
static int nearly(uint32_t used, uint32_t limit)
{
	return used >= limit - limit / 4;
}

int gs_epoch_nearly_full(const struct gs_epoch *e)
{
	return nearly(e->n_frames, e->limits.frames) || nearly(e->n_stacks, e->limits.stacks) ||
	       nearly(e->n_stack_frames, e->limits.stack_frames) || nearly(e->n_threads, e->limits.threads) ||
	       nearly(e->n_processes, e->limits.processes);
}

static uint64_t index_bytes(const struct gs_index *x)
{
	return (uint64_t)x->size * sizeof(struct gs_index_slot);
}

uint64_t gs_epoch_bytes(const struct gs_epoch *e)
{
	return e->room_frames * sizeof(struct gs_frame) + (e->room_stacks + (uint64_t)e->room_stack_frames) * sizeof(uint32_t) +
	       e->room_processes * sizeof(struct gs_process_seen) + e->room_threads * sizeof(struct gs_thread_record) +
	       e->room_files * sizeof(struct gs_file_record) + index_bytes(&e->frame_index) + index_bytes(&e->stack_index) +
	       index_bytes(&e->process_index) + index_bytes(&e->thread_index) + gs_codes_bytes(&e->codes) +
	       e->jits.room +
	       e->jits.room_waiting * sizeof(struct gs_jit_waiting);
}
