/* SPDX-License-Identifier: Apache-2.0 */
#include "tables.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "unwind_rows.h"
#include "words.h"

#define GRACE_NS 1000000000ULL
#define EXPIRES_NS (600 * 1000000000ULL)
#define RETRY_NS (60 * 1000000000ULL) /* a table that found no room is not tried again sooner */
#define IN_USE_NS (15 * 1000000000ULL) /* wanted within this time: a process maps it (listings repeat every 5 s) */
#define QUEUE 1024
#define HASH_SLOTS (1u << 17)

enum { FREE, QUEUED, READY, EMPTY /* no rows, or failed */, HOMELESS /* no room */ };

struct slot {
	uint64_t key; /* of the content: build id, or the caller's */
	uint64_t wanted_ns;
	uint64_t tried_ns;
	uint32_t start; /* words, when READY */
	int fd;         /* while QUEUED; -1: rows are built already */
	struct gs_rows *rows; /* while QUEUED; NULL: to be built from fd */
	uint16_t generation; /* counts the contents this number has stood for; never 0 once used */
	uint8_t state;
	uint8_t dropped; /* while QUEUED: nobody wants it any more */
};

struct gs_tables {
	struct gs_table *tables; /* mapped BPF arrays */
	uint32_t *words;
	struct gs_rule *rules;
	struct gs_tables_options o;
	struct slot *slots;
	struct gs_words space;
	uint32_t *rule_slots; /* rule number + 1 by hash; the builder's alone */
	uint32_t n_rules;
	uint64_t given; /* tables whose rows came ready */
	uint32_t queue[QUEUE], queued, head;
	uint64_t counters[GS_TABLE_COUNTER_COUNT];
	pthread_mutex_t lock; /* all above but tables' contents, words and rules, which the builder alone writes */
	pthread_cond_t work, settled;
	pthread_t builder;
	int stop, busy;
};

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static uint64_t content_key(const struct gs_build_id *id, uint64_t key)
{
	uint64_t hash = 0xcbf29ce484222325ULL;

	if (!id || !id->length)
		return key | 1ULL << 63;
	for (unsigned i = 0; i < id->length && i < GS_BUILD_ID_MAX; i++)
		hash = (hash ^ id->bytes[i]) * 0x100000001b3ULL;
	return hash & ~(1ULL << 63);
}

static uint32_t intern_rule(struct gs_tables *t, struct gs_rule rule)
{
	uint64_t bits;
	uint32_t at;

	memcpy(&bits, &rule, sizeof bits);
	for (at = (uint32_t)((bits * 0x9E3779B97F4A7C15ULL) >> 47); t->rule_slots[at]; at = (at + 1) % HASH_SLOTS)
		if (!memcmp(&t->rules[t->rule_slots[at] - 1], &rule, sizeof rule))
			return t->rule_slots[at] - 1;
	if (t->n_rules == t->o.max_rules) {
		t->counters[GS_TABLE_rules_full]++;
		return 1; /* GS_CFA_BAD */
	}
	t->rules[t->n_rules] = rule;
	t->rule_slots[at] = ++t->n_rules;
	return t->n_rules - 1;
}

/* Holding the lock. */
static void withdraw(struct gs_tables *t, uint32_t number, uint8_t state)
{
	__atomic_store_n(&t->tables[number].pages, 0, __ATOMIC_RELEASE);
	t->tables[number].rows = 0;
	gs_words_give(&t->space, t->slots[number].start, now(CLOCK_MONOTONIC) + GRACE_NS);
	t->slots[number].state = state;
	t->slots[number].tried_ns = now(CLOCK_MONOTONIC);
}

/* Withdraws the table that was wanted longest ago, unless it is in use. Holding the lock. */
static int evict_one(struct gs_tables *t, uint64_t now_ns)
{
	uint32_t oldest = 0;

	for (uint32_t i = 1; i < t->o.max_tables; i++)
		if (t->slots[i].state == READY && t->slots[i].wanted_ns + IN_USE_NS < now_ns &&
		    (!oldest || t->slots[i].wanted_ns < t->slots[oldest].wanted_ns))
			oldest = i;
	if (!oldest)
		return 0;
	withdraw(t, oldest, FREE);
	t->counters[GS_TABLE_tables_evicted]++;
	return 1;
}

/* Words for a table, after evicting if need be: what is evicted frees up after the grace period, so this waits for it once. */
static uint32_t take_words(struct gs_tables *t, uint32_t length)
{
	uint32_t start;

	pthread_mutex_lock(&t->lock);
	start = gs_words_take(&t->space, length, now(CLOCK_MONOTONIC));
	while (start == UINT32_MAX && !t->stop && length < t->space.size && evict_one(t, now(CLOCK_MONOTONIC))) {
		struct timespec wait = { GRACE_NS / 1000000000ULL, 10000000 };
		pthread_mutex_unlock(&t->lock);
		nanosleep(&wait, NULL);
		pthread_mutex_lock(&t->lock);
		start = gs_words_take(&t->space, length, now(CLOCK_MONOTONIC));
	}
	pthread_mutex_unlock(&t->lock);
	return start;
}

static int place(struct gs_tables *t, uint32_t number, const struct gs_rows *rows)
{
	uint32_t index_words = rows->pages + 1, start = take_words(t, index_words + rows->count);
	struct gs_table *table = &t->tables[number];
	uint32_t *numbers;

	if (start == UINT32_MAX)
		return 0;
	numbers = malloc(rows->n_rules * sizeof *numbers);
	if (!numbers) {
		pthread_mutex_lock(&t->lock);
		gs_words_give(&t->space, start, 1);
		pthread_mutex_unlock(&t->lock);
		return 0;
	}
	for (uint32_t i = 0; i < rows->n_rules; i++)
		numbers[i] = intern_rule(t, rows->rules[i]);
	memcpy(t->words + start, rows->index, index_words * sizeof *t->words);
	for (uint32_t i = 0; i < rows->count; i++)
		t->words[start + index_words + i] = (rows->rows[i] & 0xffff) | numbers[rows->rows[i] >> GS_ROW_RULE_SHIFT] << GS_ROW_RULE_SHIFT;
	free(numbers);
	table->base = rows->base;
	table->index = start;
	table->rows = start + index_words;
	__atomic_store_n(&table->pages, rows->pages, __ATOMIC_RELEASE);
	t->slots[number].start = start;
	return 1;
}

/* The number is free for another content. Holding the lock. */
static void release_slot(struct gs_tables *t, uint32_t number)
{
	if (t->slots[number].state == READY)
		withdraw(t, number, FREE);
	t->slots[number].key = 0;
	t->slots[number].state = FREE;
	t->slots[number].dropped = 0;
}

/* One build; the lock is held on entry and exit, not in between. */
static void build(struct gs_tables *t, uint32_t number)
{
	int fd = t->slots[number].fd;
	uint8_t state = EMPTY;
	struct gs_rows rows, *given = t->slots[number].rows;
	const char *reason = NULL;
	uint64_t before, spent;

	t->slots[number].rows = NULL;
	pthread_mutex_unlock(&t->lock);
	before = now(CLOCK_THREAD_CPUTIME_ID);
	if (given) {
		rows = *given;
		free(given);
	} else {
		reason = gs_rows_build(fd, &rows);
		close(fd);
	}
	if (!reason)
		state = place(t, number, &rows) ? READY : HOMELESS;
	spent = now(CLOCK_THREAD_CPUTIME_ID) - before;
	pthread_mutex_lock(&t->lock);
	t->slots[number].state = state;
	if (state == EMPTY)
		t->tables[number].rows = GS_NO_ROWS;
	t->slots[number].tried_ns = now(CLOCK_MONOTONIC);
	t->counters[GS_TABLE_build_ns] += spent;
	if (state == READY) {
		t->counters[GS_TABLE_tables_built]++;
		t->counters[GS_TABLE_rows_placed] += rows.count;
	} else if (state == HOMELESS)
		t->counters[GS_TABLE_tables_no_room]++;
	else
		t->counters[strcmp(reason, "no unwind information") ? GS_TABLE_tables_failed : GS_TABLE_tables_without_rows]++;
	if (!reason)
		gs_rows_free(&rows);
	if (t->slots[number].dropped)
		release_slot(t, number);
	/* The budget: after a build of n ms wait n * (1000 / share - 1) ms, but a start (the first half second of work) is free. */
	if (t->counters[GS_TABLE_build_ns] > 500000000ULL && !t->stop) {
		uint64_t wait = spent * (1000 - t->o.build_share) / t->o.build_share;
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		wait += (uint64_t)until.tv_nsec;
		until.tv_sec += (time_t)(wait / 1000000000ULL);
		until.tv_nsec = (long)(wait % 1000000000ULL);
		while (!t->stop && pthread_cond_timedwait(&t->settled, &t->lock, &until) != ETIMEDOUT)
			;
	}
}

static void *builder(void *argument)
{
	struct gs_tables *t = argument;

	pthread_mutex_lock(&t->lock);
	while (!t->stop) {
		if (!t->queued) {
			t->busy = 0;
			pthread_cond_broadcast(&t->settled);
			pthread_cond_wait(&t->work, &t->lock);
			continue;
		}
		uint32_t number = t->queue[t->head];
		t->head = (t->head + 1) % QUEUE;
		t->queued--;
		t->busy = 1;
		build(t, number);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

/* Builds from a file, or places rows that are built already (then fd is -1). 0: put off. */
static int enqueue(struct gs_tables *t, uint32_t number, int fd, struct gs_rows *rows)
{
	struct slot *s = &t->slots[number];

	s->state = FREE;
	if (t->queued == QUEUE) {
		t->counters[GS_TABLE_tables_queue_full]++;
		return 0;
	}
	s->fd = rows ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (s->fd < 0 && !rows) {
		t->counters[GS_TABLE_tables_no_file]++;
		return 0;
	}
	s->rows = rows;
	s->state = QUEUED;
	t->queue[(t->head + t->queued++) % QUEUE] = number;
	t->busy = 1;
	pthread_cond_signal(&t->work);
	return 1;
}

/* The slot of that content, or a free one that becomes its; 0 if all are in use. */
static uint32_t slot_for(struct gs_tables *t, uint64_t key, uint64_t now_ns)
{
	uint32_t free_slot = 0, oldest = 0;

	for (uint32_t i = 1; i < t->o.max_tables; i++) {
		struct slot *s = &t->slots[i];
		if (s->key == key)
			return i;
		if (!s->key && !free_slot)
			free_slot = i;
		if (s->state != QUEUED && s->wanted_ns + IN_USE_NS < now_ns && (!oldest || s->wanted_ns < t->slots[oldest].wanted_ns))
			oldest = i;
	}
	if (!free_slot && oldest) {
		if (t->slots[oldest].state == READY)
			withdraw(t, oldest, FREE);
		free_slot = oldest;
		t->counters[GS_TABLE_tables_evicted]++;
	}
	if (free_slot) {
		uint16_t generation = (uint16_t)(t->slots[free_slot].generation + 1);
		t->slots[free_slot] = (struct slot){ .key = key, .generation = generation ? generation : 1 };
		t->tables[free_slot].rows = 0;
		t->tables[free_slot].generation = t->slots[free_slot].generation;
	}
	return free_slot;
}

uint32_t gs_tables_want(struct gs_tables *t, const struct gs_build_id *build_id, uint64_t key, int fd, uint64_t now_ns)
{
	struct slot *s;
	uint32_t number;

	key = content_key(build_id, key);
	pthread_mutex_lock(&t->lock);
	number = slot_for(t, key, now_ns);
	s = &t->slots[number];
	if (!number)
		t->counters[GS_TABLE_tables_no_number]++;
	else
		s->wanted_ns = now_ns;
	if (number && (s->state == FREE || (s->state == HOMELESS && s->tried_ns + RETRY_NS < now_ns))) {
		if (fd >= 0)
			enqueue(t, number, fd, NULL);
		else
			t->counters[GS_TABLE_tables_no_file]++;
	}
	if (number)
		number |= (uint32_t)s->generation << 16;
	pthread_mutex_unlock(&t->lock);
	return number;
}

uint32_t gs_tables_put(struct gs_tables *t, struct gs_rows *rows, uint64_t now_ns)
{
	uint32_t number;

	pthread_mutex_lock(&t->lock);
	number = slot_for(t, 3ULL << 62 | ++t->given, now_ns);
	if (!number)
		t->counters[GS_TABLE_tables_no_number]++;
	else
		t->slots[number].wanted_ns = now_ns;
	if (number && !enqueue(t, number, -1, rows)) {
		release_slot(t, number);
		number = 0;
	}
	if (number)
		number |= (uint32_t)t->slots[number].generation << 16;
	pthread_mutex_unlock(&t->lock);
	if (!number) {
		gs_rows_free(rows);
		free(rows);
	}
	return number;
}

/* The slot behind a number, if it still stands for the same content. Holding the lock. */
static struct slot *same_slot(struct gs_tables *t, uint32_t number)
{
	struct slot *s = &t->slots[GS_TABLE_NUMBER(number) % t->o.max_tables];

	return number && s->key && s->generation == GS_TABLE_GENERATION(number) ? s : NULL;
}

int gs_tables_touch(struct gs_tables *t, uint32_t number, uint64_t now_ns)
{
	struct slot *s;
	int lives;

	pthread_mutex_lock(&t->lock);
	s = same_slot(t, number);
	lives = s && (s->state == QUEUED || s->state == READY);
	if (lives)
		s->wanted_ns = now_ns;
	pthread_mutex_unlock(&t->lock);
	return lives;
}

void gs_tables_drop(struct gs_tables *t, uint32_t number)
{
	struct slot *s;

	pthread_mutex_lock(&t->lock);
	s = same_slot(t, number);
	if (s && s->state == QUEUED)
		s->dropped = 1;
	else if (s)
		release_slot(t, GS_TABLE_NUMBER(number));
	pthread_mutex_unlock(&t->lock);
}

void gs_tables_tick(struct gs_tables *t, uint64_t now_ns)
{
	pthread_mutex_lock(&t->lock);
	for (uint32_t i = 1; i < t->o.max_tables; i++) {
		struct slot *s = &t->slots[i];
		if (!s->key || s->state == QUEUED || s->wanted_ns + EXPIRES_NS > now_ns)
			continue;
		if (s->state == READY)
			withdraw(t, i, FREE);
		s->key = 0;
		s->state = FREE;
		t->counters[GS_TABLE_tables_expired]++;
	}
	pthread_mutex_unlock(&t->lock);
}

int gs_tables_settled(struct gs_tables *t, uint32_t timeout_ms)
{
	struct timespec until;
	int settled;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&t->lock);
	while (t->busy && pthread_cond_timedwait(&t->settled, &t->lock, &until) != ETIMEDOUT)
		;
	settled = !t->busy;
	pthread_mutex_unlock(&t->lock);
	return settled;
}

void gs_tables_counters(struct gs_tables *t, uint64_t counters[GS_TABLE_COUNTER_COUNT])
{
	pthread_mutex_lock(&t->lock);
	t->counters[GS_TABLE_words_used] = t->space.used;
	t->counters[GS_TABLE_rules_used] = t->n_rules;
	memcpy(counters, t->counters, sizeof t->counters);
	pthread_mutex_unlock(&t->lock);
}

const char *gs_table_counter_name(uint32_t i)
{
	static const char *const names[] = {
#define X(name, text) #name,
		GS_TABLE_COUNTERS(X)
#undef X
	};
	return i < GS_TABLE_COUNTER_COUNT ? names[i] : NULL;
}

struct gs_rule gs_tables_find(struct gs_tables *t, uint32_t number, uint64_t file_offset)
{
	const struct gs_table *table = &t->tables[GS_TABLE_NUMBER(number) % t->o.max_tables];
	struct gs_rows rows = { .base = table->base, .pages = table->pages, .index = t->words + table->index,
				.rows = t->words + table->rows, .rules = t->rules };

	/* The builder may be at work on it: what is read may be of two tables, so it is checked as the kernel's arrays check it. */
	if (!number || table->generation != GS_TABLE_GENERATION(number) || !rows.pages || rows.pages >= t->o.max_words ||
	    table->index > t->o.max_words - rows.pages - 1)
		return (struct gs_rule){ .cfa = GS_CFA_NONE };
	return gs_rows_find(&rows, file_offset);
}

static void *map_array(int fd, size_t size)
{
	long page = sysconf(_SC_PAGESIZE);

	return mmap(NULL, (size + (size_t)page - 1) / (size_t)page * (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

struct gs_tables *gs_tables_open(const struct gs_tables_options *options)
{
	struct gs_tables *t = calloc(1, sizeof *t);

	if (!t)
		return NULL;
	t->o = *options;
	if (!t->o.build_share || t->o.build_share > 1000)
		t->o.build_share = 200;
	t->tables = map_array(t->o.tables_fd, t->o.max_tables * sizeof *t->tables);
	t->words = map_array(t->o.words_fd, t->o.max_words * sizeof *t->words);
	t->rules = map_array(t->o.rules_fd, t->o.max_rules * sizeof *t->rules);
	t->slots = calloc(t->o.max_tables, sizeof *t->slots);
	t->rule_slots = calloc(HASH_SLOTS, sizeof *t->rule_slots);
	t->space.size = t->o.max_words;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	pthread_cond_init(&t->settled, NULL);
	if (t->tables != MAP_FAILED && t->words != MAP_FAILED && t->rules != MAP_FAILED && t->slots && t->rule_slots) {
		intern_rule(t, (struct gs_rule){ .cfa = GS_CFA_NONE });
		intern_rule(t, (struct gs_rule){ .cfa = GS_CFA_BAD });
		errno = pthread_create(&t->builder, NULL, builder, t);
		if (!errno)
			return t;
	}
	t->stop = 2; /* no thread to join */
	gs_tables_close(t);
	return NULL;
}

static void unmap_array(void *array, size_t size)
{
	long page = sysconf(_SC_PAGESIZE);

	if (array && array != MAP_FAILED)
		munmap(array, (size + (size_t)page - 1) / (size_t)page * (size_t)page);
}

void gs_tables_close(struct gs_tables *t)
{
	int saved = errno;

	if (!t)
		return;
	if (t->stop != 2) {
		pthread_mutex_lock(&t->lock);
		t->stop = 1;
		pthread_cond_broadcast(&t->work);
		pthread_cond_broadcast(&t->settled);
		pthread_mutex_unlock(&t->lock);
		pthread_join(t->builder, NULL);
	}
	for (; t->queued; t->queued--, t->head = (t->head + 1) % QUEUE) {
		struct slot *s = &t->slots[t->queue[t->head]];
		if (s->rows)
			gs_rows_free(s->rows);
		else
			close(s->fd);
		free(s->rows);
	}
	unmap_array(t->tables, t->o.max_tables * sizeof *t->tables);
	unmap_array(t->words, t->o.max_words * sizeof *t->words);
	unmap_array(t->rules, t->o.max_rules * sizeof *t->rules);
	gs_words_close(&t->space);
	free(t->slots);
	free(t->rule_slots);
	free(t);
	errno = saved;
}
