/* SPDX-License-Identifier: Apache-2.0 */
/* One record of the ring becomes a row of the running window. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "jit.h"
#include "state.h"

#define RENAME_INTERVAL GS_SECOND /* a leader that renames itself all the time must not fill the process table */

struct record {
	const struct gs_sample *sample;
	const uint64_t *words;
	uint32_t n_kernel, n_user;
	const struct gs_stack_copy *copy; /* or NULL */
	const struct gs_leaf_hint *hint;  /* or NULL */
};

/* 0 and *r, or -1: the record is none of ours. Records are 8-byte aligned in the ring. */
static int parse(struct record *r, const void *data, uint64_t length)
{
	const struct gs_sample *sample = data;
	uint64_t want = sizeof(*sample);

	if (length < want)
		return -1;
	if (sample->n_kernel > GS_MAX_KERNEL_WORDS || sample->n_user > GS_MAX_USER_WORDS + 1 || !sample->value)
		return -1;
	r->sample = sample;
	r->words = (const uint64_t *)(sample + 1);
	r->n_kernel = sample->n_kernel;
	r->n_user = sample->n_user;
	r->copy = NULL;
	r->hint = NULL;
	want += (r->n_kernel + r->n_user) * sizeof(uint64_t);
	if (sample->flags & GS_SAMPLE_STACK) {
		r->copy = (const void *)((const char *)data + want);
		want += sizeof(*r->copy);
		if (length < want || r->copy->n > GS_STACK_WORDS)
			return -1;
		want += r->copy->n * sizeof(uint64_t);
	}
	if (sample->flags & GS_SAMPLE_HINT) {
		r->hint = (const void *)((const char *)data + want);
		want += sizeof(*r->hint);
	}
	return length == want ? 0 : -1;
}

uint32_t gs_read_compact_details(struct gs_core *core, uint32_t tgid, uint64_t start_boottime)
{
	struct gs_process_details *d = &core->details;
	uint32_t length = offsetof(struct gs_process_details, text);

	if (!core->mappings || !gs_mappings_details(core->mappings, tgid, start_boottime, d))
		return 0;
	for (int i = 0; i < GS_DETAIL_COUNT; i++)
		length += d->length[i];
	return length <= sizeof(*d) ? length : 0;
}

static char *copy_details(const struct gs_core *core, uint32_t length)
{
	char *copy = length ? malloc(length) : NULL;

	return copy ? memcpy(copy, &core->details, length) : NULL;
}

/* The leader's name: its own sample tells, else /proc, else the thread's name must do. */
static void leader_name(const struct gs_core *core, const struct gs_sample *sample, int known, char comm[16])
{
	const struct gs_process_details *d = &core->details;

	memcpy(comm, sample->comm, 16);
	if (sample->tid == sample->tgid || !known || d->gone || !d->length[GS_DETAIL_COMM])
		return;

	uint32_t n = d->length[GS_DETAIL_COMM] < 15 ? d->length[GS_DETAIL_COMM] : 15;

	memset(comm, 0, 16);
	memcpy(comm, d->text + d->length[GS_DETAIL_STAT], n);
	if (n && comm[n - 1] == '\n')
		comm[n - 1] = 0;
}

static uint32_t add_process(struct gs_core *core, struct gs_process_seen *seen, uint32_t old)
{
	uint32_t id;

	seen->details = copy_details(core, seen->details_length);
	id = gs_epoch_add_process(core->epoch, seen, old);
	if (id == GS_NO_ID)
		free(seen->details);
	return id;
}

/* A leader that changes its name (exec, prctl) goes on under a new id, so that samples keep the name they were taken under. */
static uint32_t process_id(struct gs_core *core, const struct gs_sample *sample)
{
	uint32_t id = gs_epoch_find_process(core->epoch, sample->tgid, sample->start_boottime);
	struct gs_process_seen seen = {
		.start_boottime = sample->start_boottime,
		.cgroup_id = sample->cgroup_id,
		.tgid = sample->tgid,
	};

	if (id == GS_NO_ID) {
		seen.details_length = gs_read_compact_details(core, sample->tgid, sample->start_boottime);
		leader_name(core, sample, seen.details_length > 0, seen.comm);
		return add_process(core, &seen, GS_NO_ID);
	}

	const struct gs_process_seen *known = &core->epoch->processes[id];

	if (sample->tid != sample->tgid || !memcmp(known->comm, sample->comm, 16) ||
	    (known->renamed_ns && sample->time_ns - known->renamed_ns < RENAME_INTERVAL))
		return id;
	memcpy(seen.comm, sample->comm, 16);
	seen.renamed_ns = sample->time_ns;
	seen.details_length = gs_read_compact_details(core, sample->tgid, sample->start_boottime);
	return add_process(core, &seen, id);
}

/* What a user address is, as far as is known by now. */
static struct gs_place place(struct gs_core *core, const struct record *r, uint64_t address, int leaf)
{
	struct gs_place at = { GS_PLACE_NO_PROCESS, 0, 0 };

	if (core->mappings) {
		at = gs_mappings_normalize(core->mappings, r->sample->tgid, r->sample->start_boottime, address);
		if (at.kind == GS_PLACE_NO_PROCESS && leaf && r->hint)
			at = gs_mappings_hint(core->mappings, r->hint);
	}
	return at;
}

enum { KEEP, CUT, BAD, FULL };

struct walk {
	struct gs_core *core;
	const struct record *r;
	uint32_t process;
	uint32_t n; /* frame ids */
};

static int add(struct walk *w, uint32_t kind, uint32_t owner, uint64_t address, uint64_t detail)
{
	struct gs_frame frame = { .address = address, .detail = detail, .kind = kind, .owner = owner };
	uint32_t id = gs_epoch_frame(w->core->epoch, &frame);

	if (id == GS_NO_ID)
		return FULL;
	w->core->frame_ids[w->n++] = id;
	return KEEP;
}

static int end_early(struct walk *w, enum gs_end end)
{
	int result = add(w, GS_END, 0, end, 0);

	return result == KEEP ? CUT : result;
}

/* Memory of no file: JIT code, which may have registered its name. */
static int add_anonymous(struct walk *w, uint64_t address, int guessed)
{
	const struct gs_sample *s = w->r->sample;
	struct gs_epoch *e = w->core->epoch;
	const struct gs_jit_view *view;
	const struct gs_jit_function *f =
		gs_mappings_jit(w->core->mappings, s->tgid, s->start_boottime, address, w->core->drain_time, &view);
	struct gs_jit_waiting frame = { s->start_boottime, address, s->tgid, w->process };
	uint32_t known = e->n_frames;
	int result = add(w, guessed ? GS_RAW_GUESSED : GS_RAW, w->process, address, f ? f->object : 0);

	if (e->n_frames != known)
		gs_jit_names_see(&e->jits, &frame, f, view);
	return result;
}

/* A raw word: the process had no table when it was sampled, or the address belongs to no file. An address in no mapping ends
 * the stack: past the leaf only a wrong frame pointer leads there. */
static int add_raw(struct walk *w, uint64_t address, int guessed, int leaf)
{
	struct gs_place at = place(w->core, w->r, address, leaf);
	int result;

	switch (at.kind) {
	case GS_PLACE_NATIVE:
		return add(w, guessed ? GS_GUESSED : GS_NATIVE, at.file_id, at.offset, 0);
	case GS_PLACE_VDSO:
		return add(w, GS_FRAME_VDSO, w->process, at.offset, 0);
	case GS_PLACE_UNMAPPED:
		if (!leaf)
			return end_early(w, GS_END_frame_pointer);
		result = add(w, GS_RAW, w->process, address, 0);
		return result == KEEP ? end_early(w, GS_END_no_mapping) : result;
	case GS_PLACE_ANONYMOUS:
		return add_anonymous(w, address, guessed);
	default:
		return add(w, guessed ? GS_RAW_GUESSED : GS_RAW, w->process, address, 0);
	}
}

/* Instructions of one line are one frame: (code, line, check). */
static int add_python(struct walk *w, uint64_t code, uint64_t detail)
{
	const struct gs_sample *s = w->r->sample;
	struct gs_codes *codes = &w->core->epoch->codes;
	uint32_t frame = gs_codes_frame(codes, w->process, code, detail);
	const struct gs_python *p;
	uint64_t line;
	int result;

	if (frame != GS_NO_ID) {
		w->core->frame_ids[w->n++] = frame;
		return KEEP;
	}
	p = w->core->mappings ? gs_mappings_python(w->core->mappings, s->tgid, s->start_boottime) : NULL;
	line = gs_codes_line(codes, w->process, s->tgid, p, code, detail);
	result = add(w, GS_PYTHON, w->process, code, line << 32 | (uint32_t)detail);
	if (result == KEEP)
		gs_codes_remember(codes, w->process, code, detail, w->core->frame_ids[w->n - 1]);
	return result;
}

/* One frame from words[*i]; moves *i past it. */
static int add_word(struct walk *w, uint32_t *i)
{
	const uint64_t *words = w->r->words + w->r->n_kernel;
	uint64_t word = words[*i], payload = word & ((1ULL << GS_WORD_SHIFT) - 1);
	uint32_t at = (*i)++;

	switch (word >> GS_WORD_SHIFT) {
	case GS_RAW:
		return add_raw(w, payload, 0, at == 0);
	case GS_RAW_GUESSED:
		return add_raw(w, payload, 1, at == 0);
	case GS_NATIVE:
		return add(w, GS_NATIVE, payload >> GS_FILE_SHIFT, payload & GS_OFFSET_MASK, 0);
	case GS_GUESSED:
		return add(w, GS_GUESSED, payload >> GS_FILE_SHIFT, payload & GS_OFFSET_MASK, 0);
	case GS_PYTHON:
		if (*i >= w->r->n_user)
			return BAD;
		return add_python(w, payload, words[(*i)++]);
	case GS_END:
		if (*i != w->r->n_user)
			return BAD;
		return add(w, GS_END, 0, payload & 0xff, 0);
	}
	return BAD;
}

/* Kernel words: all but the first are return addresses (bpf_get_stack), so the call lies one byte before. */
static int add_kernel(struct walk *w)
{
	for (uint32_t i = 0; i < w->r->n_kernel; i++) {
		int result = add(w, GS_KERNEL, 0, w->r->words[i] - (i ? 1 : 0), 0);

		if (result != KEEP)
			return result;
	}
	return KEEP;
}

static int rule_at(void *context, uint64_t address, struct gs_rule *rule)
{
	const struct walk *w = context;
	const struct gs_sample *s = w->r->sample;

	return gs_mappings_rule(w->core->mappings, s->tgid, s->start_boottime, address, rule);
}

/* The user side by the copied stack, if that gives more than the words: 1 and *result. By now the process has its table. */
static int replayed(struct walk *w, int *result)
{
	struct gs_replay *replay = &w->core->replay;

	if (!w->r->copy || !w->core->mappings || !w->core->tables)
		return 0;
	gs_replay(w->r->copy, gs_mappings_start_stack(w->core->mappings, w->r->sample->tgid, w->r->sample->start_boottime), rule_at, w, replay);
	w->core->replays++;
	if (replay->end != GS_END_complete && replay->n < w->r->n_user)
		return 0;
	w->core->replays_complete += replay->end == GS_END_complete;
	*result = KEEP;
	for (uint32_t i = 0; i < replay->n && *result == KEEP; i++)
		*result = add_raw(w, replay->addresses[i], 0, i == 0);
	if (*result == KEEP && replay->end != GS_END_complete)
		*result = end_early(w, replay->end);
	return 1;
}

static int add_frames(struct walk *w)
{
	int result = add_kernel(w), by_copy = 0;

	if (result == KEEP && replayed(w, &by_copy))
		return by_copy == CUT ? KEEP : by_copy;
	for (uint32_t i = 0; i < w->r->n_user && result == KEEP;)
		result = add_word(w, &i);
	return result == CUT ? KEEP : result;
}

/* GS_DROP_COUNT and the ids, or why there are none. */
static enum gs_drop intern(struct gs_core *core, const struct record *r, uint32_t wait, uint32_t *stack, uint32_t *thread)
{
	struct walk w = { .core = core, .r = r };

	w.process = process_id(core, r->sample);
	if (w.process == GS_NO_ID)
		return GS_DROP_stack_table_full;
	*thread = gs_epoch_thread(core->epoch, w.process, r->sample->tid, r->sample->comm, wait);

	int result = add_frames(&w);

	if (result == BAD)
		return GS_DROP_bad_record;
	*stack = result == KEEP ? gs_epoch_stack(core->epoch, core->frame_ids, w.n) : GS_NO_ID;
	return *stack == GS_NO_ID || *thread == GS_NO_ID ? GS_DROP_stack_table_full : GS_DROP_COUNT;
}

enum gs_drop gs_intern(struct gs_core *core, const struct gs_sample *sample, uint64_t bytes, uint32_t wait, uint32_t *stack, uint32_t *thread)
{
	struct record r;

	return parse(&r, sample, bytes) ? GS_DROP_bad_record : intern(core, &r, wait, stack, thread);
}

int gs_is_sample(const void *data, uint64_t length)
{
	struct record r;

	return !parse(&r, data, length);
}

static enum gs_drop deliver(struct gs_core *core, const struct record *r)
{
	uint32_t stack, thread;
	enum gs_drop drop = intern(core, r, 0, &stack, &thread);

	if (drop != GS_DROP_COUNT)
		return drop;
	gs_moment(core, r->sample->tid, stack, thread, r->sample->time_ns, core->timers.period);
	return gs_window_rows_add(&core->rows, stack, thread, r->sample->value) ? GS_DROP_window_full : GS_DROP_COUNT;
}

/* After a stall the ring holds more than one window: their rows go where they belong. */
static void end_windows_before(struct gs_core *core, uint64_t time_ns)
{
	while (!(core->flags & GS_OPTION_NO_KERNEL) && time_ns >= core->window_end && core->window_end <= core->drain_time)
		gs_end_window(core, core->drain_time - core->window_end < GS_SECOND, 0);
}

static int is_wait(const struct gs_core *core, const struct gs_sample *sample, uint64_t length)
{
	return core->waits && length >= sizeof(*sample) && (sample->flags & (GS_SAMPLE_WAIT | GS_SAMPLE_WAIT_END));
}

void gs_record(struct gs_core *core, const void *data, uint64_t length)
{
	struct record r;

	core->bytes += length;
	if (is_wait(core, data, length)) {
		end_windows_before(core, ((const struct gs_sample *)data)->time_ns);
		gs_waits_record(core, data, length);
		return;
	}
	if (core->launches && length >= sizeof(*r.sample) && (((const struct gs_sample *)data)->flags & GS_SAMPLE_LAUNCH)) {
		end_windows_before(core, ((const struct gs_sample *)data)->time_ns);
		gs_launches_record(core, data, length);
		return;
	}
	if (parse(&r, data, length)) {
		core->books.drops[GS_DROP_bad_record]++;
		return;
	}
	end_windows_before(core, r.sample->time_ns);
	if (core->mappings)
		gs_mappings_sampled(core->mappings, r.sample, core->drain_time);

	enum gs_drop drop = deliver(core, &r);

	if (drop == GS_DROP_COUNT) {
		core->books.delivered++;
		core->delivered++;
	} else {
		core->books.drops[drop]++;
	}
}
