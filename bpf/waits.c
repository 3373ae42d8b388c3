/* SPDX-License-Identifier: Apache-2.0 */
#include "waits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "state.h"

#define BUCKETS 4096
#define OWN_FRAMES 8           /* of the tracepoint and our program, at most */
#define STACKS 4               /* kept of a thread, each from another place */
#define MAX_BYTES (16u << 20)  /* of all stacks: 40 k of them */
#define SETTLE (10 * GS_SECOND)
#define LISTED_A_SECOND 16 /* processes asleep since before: at once, their tables would keep those of the busy waiting */
#define KTHREAD_SLICE (10 * GS_SECOND) /* they wait all day */

/* A stack as it came, interned when a wait of it is first shown: most waits are too short to be. */
struct taken {
	uint64_t since;
	uint64_t epoch; /* of the ids; 0 = not interned */
	uint32_t stack, thread;
	uint32_t site;
	uint32_t bytes; /* of the sample with all that follows */
	uint64_t settled; /* ns: before, the process may yet get the table that a copied stack waits for */
	uint8_t kind;
	uint8_t unlisted; /* its process's mappings have not been asked for */
	struct gs_sample *sample;
};

struct gs_waiter {
	struct gs_waiter *next;
	uint64_t start_boottime;
	uint64_t since, until; /* the wait last accounted for, and up to when */
	uint32_t tid;
	uint8_t absent; /* scans that did not find it */
	uint8_t newest; /* of taken */
	struct taken taken[STACKS];
};

/* One wait, or a part of it. */
struct part {
	const struct gs_sample *who;
	uint64_t since, until;
	uint32_t site;
	uint8_t kind;
};

static struct gs_waiter **bucket_of(struct gs_waits *w, uint32_t tid, uint64_t start_boottime)
{
	return &w->buckets[gs_mix(gs_mix(3, tid), start_boottime) % BUCKETS];
}

static struct gs_waiter *find(struct gs_waits *w, uint32_t tid, uint64_t start_boottime)
{
	struct gs_waiter *t = *bucket_of(w, tid, start_boottime);

	while (t && (t->tid != tid || t->start_boottime != start_boottime))
		t = t->next;
	return t;
}

/* NULL: no room, or no memory. */
static struct gs_waiter *find_or_add(struct gs_waits *w, const struct gs_sample *s)
{
	struct gs_waiter *t = find(w, s->tid, s->start_boottime), **bucket = bucket_of(w, s->tid, s->start_boottime);

	if (t || w->n >= GS_MAX_WAITING || !(t = calloc(1, sizeof(*t))))
		return t;
	t->tid = s->tid;
	t->start_boottime = s->start_boottime;
	t->next = *bucket;
	*bucket = t;
	w->n++;
	return t;
}

static void forget_stack(struct gs_waits *w, struct taken *taken)
{
	free(taken->sample);
	w->bytes -= taken->bytes;
	memset(taken, 0, sizeof(*taken));
}

static void forget(struct gs_waits *w, struct gs_waiter **at)
{
	struct gs_waiter *t = *at;

	for (int i = 0; i < STACKS; i++)
		forget_stack(w, &t->taken[i]);
	*at = t->next;
	free(t);
	w->n--;
}

/* Where the stack of this site goes: in place of its last one, else of the thread's oldest. */
static struct taken *place_for(struct gs_waiter *t, uint32_t site)
{
	for (int i = 0; i < STACKS; i++)
		if (t->taken[i].sample && t->taken[i].site == site)
			return &t->taken[i];
	return &t->taken[(t->newest + 1) % STACKS];
}

/* Equal stacks of one place keep their ids. */
static int is_same(const struct taken *taken, const struct gs_sample *s, uint32_t bytes, uint8_t kind)
{
	return taken->sample && taken->bytes == bytes && taken->kind == kind && !memcmp(taken->sample->comm, s->comm, sizeof(s->comm)) &&
	       taken->sample->n_kernel == s->n_kernel && !memcmp(taken->sample + 1, s + 1, bytes - sizeof(*s));
}

static void keep(struct gs_waits *w, const struct gs_sample *s, uint32_t bytes, const struct gs_wait_tail *tail, uint64_t now)
{
	struct gs_waiter *t = find_or_add(w, s);
	struct taken *taken = t ? place_for(t, tail->site) : NULL;

	if (!t)
		return;
	if (!is_same(taken, s, bytes, tail->kind)) {
		forget_stack(w, taken);
		if (w->bytes + bytes > MAX_BYTES || !(taken->sample = malloc(bytes)))
			return; /* its waits are shown without a stack */
		w->bytes += bytes;
		taken->bytes = bytes;
		memcpy(taken->sample, s, bytes);
		taken->settled = s->flags & GS_SAMPLE_STACK ? now + SETTLE : 0;
	}
	taken->since = tail->since;
	taken->site = tail->site;
	taken->kind = tail->kind;
	taken->unlisted = tail->walked == GS_WAIT_ASLEEP && !(s->flags & GS_SAMPLE_KTHREAD);
	t->newest = (uint8_t)(taken - t->taken);
}

/* This wait's own stack, else the latest of the same place; NULL: neither. */
static struct taken *stack_of(struct gs_waits *w, struct gs_waiter *t, const struct part *p)
{
	struct taken *found = NULL;

	w->shown++;
	for (int i = 0; t && i < STACKS; i++) {
		if (!t->taken[i].sample || t->taken[i].site != p->site)
			continue;
		if (t->taken[i].since == p->since)
			return &t->taken[i];
		found = &t->taken[i];
	}
	if (found)
		w->by_site++;
	else
		w->without_stack++;
	return found;
}

static enum gs_drop intern_without_stack(struct gs_core *core, const struct part *p, uint32_t *stack, uint32_t *thread)
{
	struct {
		struct gs_sample sample;
		uint64_t word;
	} made = { *p->who, (uint64_t)GS_END << GS_WORD_SHIFT | GS_END_wait_unwalked };

	made.sample.n_kernel = 0;
	made.sample.n_user = 1;
	made.sample.flags &= GS_SAMPLE_KTHREAD;
	made.sample.value = 1;
	return gs_intern(core, &made.sample, sizeof(made), p->kind, stack, thread);
}

static void list(struct gs_core *core, struct taken *taken)
{
	struct gs_waits *w = core->waits;

	if (!taken->unlisted || !core->mappings || w->listed >= LISTED_A_SECOND)
		return;
	w->listed++;
	gs_mappings_sampled(core->mappings, taken->sample, core->drain_time);
	taken->unlisted = 0;
	taken->epoch = 0;
}

static enum gs_drop ids_of(struct gs_core *core, struct taken *taken, const struct part *p, uint32_t *stack, uint32_t *thread)
{
	enum gs_drop drop = GS_DROP_COUNT;

	if (!taken)
		return intern_without_stack(core, p, stack, thread);
	list(core, taken);
	if (taken->epoch != core->epoch->number || taken->kind != p->kind) {
		taken->kind = p->kind;
		taken->epoch = 0;
		drop = gs_intern(core, taken->sample, taken->bytes, p->kind, &taken->stack, &taken->thread);
		if (drop == GS_DROP_COUNT && core->drain_time >= taken->settled && !taken->unlisted)
			taken->epoch = core->epoch->number;
	}
	*stack = taken->stack;
	*thread = taken->thread;
	return drop;
}

/* Adds what is not accounted for yet. GS_DROP_COUNT, or why it could not be. */
static enum gs_drop account(struct gs_core *core, const struct part *p)
{
	struct gs_waits *w = core->waits;
	struct gs_waiter *t = find_or_add(w, p->who);
	uint64_t from = t && t->since == p->since && t->until > p->since ? t->until : p->since;
	uint32_t stack, thread;
	enum gs_drop drop;

	if (p->until <= from)
		return GS_DROP_COUNT; /* shown already */
	drop = ids_of(core, stack_of(w, t, p), p, &stack, &thread);
	if (drop != GS_DROP_COUNT)
		return drop;
	if (gs_window_rows_add(&w->rows, stack, thread, p->until - from))
		return GS_DROP_window_full;
	gs_moment(core, p->who->tid, stack, thread, from, p->until - from);
	if (t) {
		t->since = p->since;
		t->until = p->until;
	}
	return GS_DROP_COUNT;
}

static int is_scheduler(const struct gs_offcpu *o, uint64_t address)
{
	return address > o->scheduler && address <= o->scheduler_end;
}

/* The kernel's words from what called the scheduler on: the tracepoint's own frames change with whoever else traces switches, and
 * schedule() is the end of every wait. As bpf_get_task_stack gives them. */
static uint32_t strip_scheduler(const struct gs_offcpu *o, struct gs_sample *s, uint32_t bytes)
{
	uint64_t *words = (uint64_t *)(s + 1);
	uint32_t first = 0;

	while (first < s->n_kernel && first < OWN_FRAMES && !is_scheduler(o, words[first]))
		first++;
	if (first == OWN_FRAMES)
		return bytes; /* not found: shown as they are */
	while (first < s->n_kernel && is_scheduler(o, words[first]))
		first++;
	if (first == s->n_kernel)
		return bytes; /* nothing else: a kernel thread's loop */
	bytes -= first * sizeof(*words);
	memmove(words, words + first, bytes - sizeof(*s));
	s->n_kernel -= first;
	return bytes;
}

/* 0 and where the tail lies, or -1: the record is none of ours. */
static int parse(const struct gs_sample *s, uint64_t length, struct gs_wait_tail *tail)
{
	if (length < sizeof(*s) + sizeof(*tail) || !gs_is_sample(s, length - sizeof(*tail)) || (s->flags & GS_SAMPLE_HINT))
		return -1;
	memcpy(tail, (const char *)s + length - sizeof(*tail), sizeof(*tail));
	return tail->kind && tail->kind <= GS_WAIT_stopped ? 0 : -1;
}

static void end_wait(struct gs_core *core, const struct gs_sample *s, const struct gs_wait_tail *tail)
{
	struct part whole = { s, tail->since, s->time_ns, tail->site, tail->kind };
	enum gs_drop drop = account(core, &whole);

	if (drop == GS_DROP_COUNT)
		core->waits->books.delivered++;
	else
		core->waits->books.drops[drop]++;
}

static void keep_stack(struct gs_core *core, const struct gs_sample *s, uint32_t bytes, const struct gs_wait_tail *tail)
{
	struct gs_waits *w = core->waits;

	memcpy(&w->sample, s, bytes);
	bytes = strip_scheduler(&w->kernel, &w->sample, bytes);
	keep(w, &w->sample, bytes, tail, core->drain_time);
}

void gs_waits_record(struct gs_core *core, const void *data, uint64_t length)
{
	const struct gs_sample *s = data;
	struct gs_wait_tail tail;

	if (parse(s, length, &tail)) {
		core->waits->books.drops[GS_DROP_bad_record]++;
		return;
	}
	if (s->flags & GS_SAMPLE_WAIT_END) {
		end_wait(core, s, &tail);
		return;
	}
	if (core->mappings && tail.walked != GS_WAIT_ASLEEP)
		gs_mappings_sampled(core->mappings, s, core->drain_time);
	keep_stack(core, s, (uint32_t)(length - sizeof(tail)), &tail);
}

/* What the kernel knows of a thread that waits, as the header that its records have. */
static struct gs_sample header_of(const struct gs_wait *k)
{
	struct gs_sample s = {
		.time_ns = k->since,
		.start_boottime = k->start_boottime,
		.cgroup_id = k->cgroup_id,
		.value = 1,
		.tgid = k->tgid,
		.tid = k->tid,
		.flags = k->kthread ? GS_SAMPLE_KTHREAD : 0,
	};

	memcpy(s.comm, k->comm, sizeof(s.comm));
	return s;
}

static void show_part(struct gs_core *core, const struct gs_wait *k, uint64_t until)
{
	struct gs_sample who = header_of(k);
	struct gs_waiter *t = find(core->waits, k->tid, k->start_boottime);
	uint64_t shown = t && t->since == k->since ? t->until : k->since;
	struct part part = { &who, k->since, until, k->site, k->kind };

	if (t)
		t->absent = 0;
	if (!k->since || until < k->since + core->waits->threshold || (k->kthread && until < shown + KTHREAD_SLICE))
		return;
	account(core, &part); /* what finds no room now is part of the next window, or of the wait's end */
}

/* Threads that no scan has found twice have ended: the first may have missed what is still in the ring. */
static void sweep(struct gs_waits *w)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct gs_waiter **at = &w->buckets[i]; *at;) {
			if ((*at)->absent++ >= 2)
				forget(w, at);
			else
				at = &(*at)->next;
		}
}

static void show_waiting(struct gs_core *core)
{
	struct gs_waits *w = core->waits;
	uint32_t n = gs_offcpu_scan(&w->kernel);

	for (uint32_t i = 0; i < n; i++)
		show_part(core, &w->kernel.waits[i], core->window_end);
	sweep(w);
}

/* Switches that the program did not see: as bpf/books.c does for the timers, a difference counts once the next window still
 * shows it. */
static void book_skipped(struct gs_waits *w, uint64_t switches, uint64_t entered, int last)
{
	int64_t seen = switches ? (int64_t)(switches - w->first_switches - (entered - w->first_entered)) : w->skipped_seen;
	int64_t sure = last || seen < w->skipped_seen ? seen : w->skipped_seen;

	if (sure > w->skipped_booked) {
		w->books.drops[GS_DROP_kernel_skipped] += sure - w->skipped_booked;
		w->skipped_booked = sure;
	}
	w->skipped_seen = seen;
}

static void book(struct gs_waits *w, int last)
{
	uint64_t switches = w->last_switches ? w->last_switches : gs_switches(), unseen, without_room;
	struct gs_wait_counters now;

	if (gs_offcpu_counters(&w->kernel, &now))
		return; /* the next window books it */
	book_skipped(w, switches, now.entered, last);
	w->owed += now.no_room - w->booked.no_room;
	unseen = now.unseen - w->booked.unseen;
	without_room = w->owed < unseen ? w->owed : unseen;
	w->owed -= without_room;
	w->books.idle += now.idle - w->booked.idle;
	w->books.filtered += unseen - without_room + now.brief - w->booked.brief;
	w->books.drops[GS_DROP_wait_no_room] += without_room;
	w->books.drops[GS_DROP_ring_full] += now.ring_full - w->booked.ring_full;
	w->booked = now;
}

void gs_waits_end_window(struct gs_core *core, int from_kernel, int last)
{
	if (!from_kernel || (core->flags & GS_OPTION_NO_KERNEL))
		return;
	core->waits->listed = 0;
	show_waiting(core);
	book(core->waits, last);
}

struct gs_waits *gs_waits_open(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	struct gs_waits *w = calloc(1, sizeof(*w));

	if (!w || !(w->buckets = calloc(BUCKETS, sizeof(*w->buckets)))) {
		gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for waits");
		free(w);
		return NULL;
	}
	w->kernel.link = -1;
	w->threshold = options->wait_threshold_us * 1000ULL;
	w->rows.limit = core->rows.limit;
	if (!(options->flags & GS_OPTION_NO_KERNEL) && gs_offcpu_open(&w->kernel, &core->kernel, options, error)) {
		gs_waits_close(w);
		return NULL;
	}
	return w;
}

int gs_waits_start(struct gs_waits *w, struct gs_error *error)
{
	struct gs_wait_counters now = { 0 };

	if (gs_offcpu_attach(&w->kernel, error))
		return -1;
	w->first_switches = gs_switches();
	gs_offcpu_counters(&w->kernel, &now); /* after the switches: then fewer seem to be missing, never more */
	w->first_entered = now.entered;
	gs_offcpu_find_asleep(&w->kernel);
	return 0;
}

void gs_waits_stop(struct gs_waits *w)
{
	w->last_switches = gs_switches();
	gs_offcpu_detach(&w->kernel);
}

void gs_waits_close(struct gs_waits *w)
{
	if (!w)
		return;
	for (int i = 0; i < BUCKETS; i++)
		while (w->buckets[i])
			forget(w, &w->buckets[i]);
	free(w->buckets);
	gs_window_rows_free(&w->rows);
	gs_offcpu_close(&w->kernel);
	free(w);
}
