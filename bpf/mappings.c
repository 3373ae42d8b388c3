// SPDX-License-Identifier: Apache-2.0
#include "mappings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mappings_state.h"
#include "rules.h"
#include "tables.h"
#include "vdso.h"

#define RELIST_NS (5 * GS_SECOND) /* also without a reason: catches an unmap followed by an equal map */
#define STALE_WAIT_NS (20 * GS_MS)
#define UNRESOLVED_WAIT_NS (100 * GS_MS)
#define RENAME_WAIT_NS GS_SECOND
#define KEEP_GONE_NS (60 * GS_SECOND)
#define CHECKS_A_TICK 16  /* 10 us each */
#define CREDIT_SHARE 500  /* 1/500 of the time may be listing: 0.2 % of a core */
#define CREDIT_MAX ((int64_t)(4 * GS_MS))

static const char *const counter_names[] = {
#define X(name, text) #name,
	GS_MAPPING_COUNTERS(X)
#undef X
};

const char *gs_mapping_counter_name(uint32_t i)
{
	return i < GS_MAPPING_COUNTER_COUNT ? counter_names[i] : NULL;
}

const uint64_t *gs_mappings_counters(const struct gs_mappings *m)
{
	return m->counters;
}

struct gs_mappings *gs_mappings_open(const struct gs_mappings_options *o)
{
	struct gs_mappings *m = calloc(1, sizeof(*m));
	int error;

	if (!m)
		return NULL;
	m->list.maps_fd = -1;
	m->proc.root = -1;
	m->vdso = -1;
	m->max_processes = o->max_processes ? o->max_processes : 4096;
	m->memory_budget = o->memory_budget ? o->memory_budget : 32 << 20;
	m->no_query = o->text_only;
	m->tables = o->tables;
	m->scratch = malloc(GS_MAX_MAPPINGS * sizeof(*m->scratch));
	error = gs_proc_open(&m->proc, o->proc_root);
	if (!error)
		error = gs_cache_open(&m->cache, m->max_processes);
	if (!error)
		error = gs_blocks_open(&m->blocks, o->procs_fd, o->mappings_fd, o->mapping_rows);
	m->files = gs_files_open(o->max_files, &m->proc, m->counters);
	m->pythons = gs_pythons_open(o->pythons_fd > 0 ? o->pythons_fd : -1, m->counters);
	m->jits = gs_jits_open(o->proc_root, o->tables);
	m->vdso = gs_vdso_open();
	if (!error && m->scratch && m->files && m->pythons && m->jits)
		return m;
	gs_mappings_close(m);
	errno = error ? error : ENOMEM;
	return NULL;
}

void gs_mappings_close(struct gs_mappings *m)
{
	if (!m)
		return;
	while (m->cache.oldest) {
		gs_jit_forget_process(m, m->cache.oldest);
		gs_cache_remove(&m->cache, m->cache.oldest);
	}
	gs_jits_close(m->jits);
	if (m->cache.buckets)
		gs_cache_close(&m->cache);
	gs_files_close(m->files);
	gs_pythons_close(m->pythons);
	if (m->vdso >= 0)
		close(m->vdso);
	gs_blocks_close(&m->blocks);
	gs_list_free(&m->list);
	gs_proc_close(&m->proc);
	free(m->scratch);
	free(m);
}

static void forget(struct gs_mappings *m, struct gs_cached *p, uint64_t now_ns)
{
	gs_withdraw(m, p, now_ns);
	for (uint32_t i = 0; i < p->count; i++)
		gs_files_release(m->files, p->rows[i].file_id);
	gs_pythons_forget(m->pythons, p);
	gs_jit_forget_process(m, p);
	gs_cache_remove(&m->cache, p);
}

static void end(struct gs_mappings *m, struct gs_cached *p, uint64_t now_ns)
{
	if (p->ended)
		return;
	p->ended = now_ns;
	m->counters[GS_MAPPING_processes_ended]++;
	gs_withdraw(m, p, now_ns);
	gs_pythons_forget(m->pythons, p);
}

static uint64_t thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * GS_SECOND + t.tv_nsec;
}

/* What a sample asks for; listings for either reason that bring nothing new make it wait longer. */
static enum gs_reason reason_of(uint32_t flags)
{
	return flags & (GS_SAMPLE_NO_TABLE | GS_SAMPLE_STALE_TABLE) ? GS_REASON_STALE : flags & GS_SAMPLE_UNRESOLVED ? GS_REASON_UNRESOLVED : GS_REASON_NONE;
}

/* By reason: none, stale, unresolved. */
static const uint64_t first_wait[GS_REASONS] = {RELIST_NS, STALE_WAIT_NS, UNRESOLVED_WAIT_NS};

static int list_now(struct gs_mappings *m, struct gs_cached *p, uint32_t tid, enum gs_reason reason, uint64_t now_ns)
{
	uint64_t started = thread_ns(), *wait = &p->wait[reason];
	int answer, changed;

	p->last_listed = now_ns;
	answer = gs_list_process(m, p, tid, now_ns, &changed);
	if (answer != GS_LISTED)
		gs_read_details(m, p, -1);
	if (answer == GS_LISTING_GONE || answer == GS_LISTING_REUSED)
		end(m, p, now_ns);
	p->answer = (uint8_t)answer;
	p->credit -= (int64_t)(thread_ns() - started);
	if (changed)
		memcpy(p->wait, first_wait, sizeof(p->wait));
	else
		*wait = *wait * 2 < RELIST_NS ? *wait * 2 : RELIST_NS;
	return answer;
}

static void keep_bounds(struct gs_mappings *m, const struct gs_cached *keep, uint64_t now_ns)
{
	while ((m->cache.count > m->max_processes || m->cache.bytes > m->memory_budget) && m->cache.oldest != keep) {
		m->counters[GS_MAPPING_processes_evicted]++;
		forget(m, m->cache.oldest, now_ns);
	}
}

static struct gs_cached *seen(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t now_ns)
{
	struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime), *other = NULL;

	if (!p) {
		p = gs_cache_add(&m->cache, tgid, start_boottime);
		if (!p)
			return NULL;
		while ((other = gs_cache_other(&m->cache, p, other)))
			if (other->start_boottime < start_boottime)
				end(m, other, now_ns); /* its PID is taken */
		p->answer = GS_LISTING_CACHED; /* nothing yet */
		p->first_seen = p->credit_at = now_ns;
		memcpy(p->wait, first_wait, sizeof(p->wait));
		p->credit = CREDIT_MAX;
	}
	gs_cache_touch(&m->cache, p);
	p->last_sampled = now_ns;
	return p;
}

int gs_mappings_refresh(struct gs_mappings *m, uint32_t tgid, uint32_t tid, uint64_t start_boottime, uint64_t now_ns)
{
	struct gs_cached *p = seen(m, tgid, start_boottime, now_ns);
	int answer = p ? list_now(m, p, tid, GS_REASON_NONE, now_ns) : gs_listing_failed(m, ENOMEM);

	if (p)
		keep_bounds(m, p, now_ns);
	return answer;
}

static int is_due(struct gs_cached *p, const struct gs_sample *s, enum gs_reason reason, uint64_t now_ns)
{
	if (!p->last_listed)
		return 1;
	if (s->time_ns > p->ended)
		p->ended = 0; /* it runs, so it was not gone: /proc was not readable, or not the host's */
	if (p->ended || s->time_ns < p->last_listed) /* taken before the last listing: that answers it */
		return 0;
	p->credit += (int64_t)((now_ns - p->credit_at) / CREDIT_SHARE);
	p->credit_at = now_ns;
	if (p->credit > CREDIT_MAX)
		p->credit = CREDIT_MAX;
	return now_ns - p->last_listed >= p->wait[reason] && p->credit > 0;
}

/* Of a kernel thread, or of a process whose leader has another name by now: exec, prctl, setproctitle. */
static int details_only(struct gs_mappings *m, struct gs_cached *p, uint64_t now_ns)
{
	int process = gs_process_open(&m->proc, p->tgid);
	struct gs_stamp stamp;

	p->details_read = now_ns;
	if (process < 0 || gs_process_stamp(process, 0, &stamp) || !gs_process_started(&m->proc, stamp.start_ticks, p->start_boottime))
		gs_read_details(m, p, -1);
	else
		gs_read_details(m, p, process);
	if (process >= 0)
		close(process);
	return GS_LISTED;
}

static int renamed(const struct gs_cached *p, const struct gs_sample *s, uint64_t now_ns)
{
	const struct gs_process_details *d = p->details;
	uint16_t length = d ? d->length[GS_DETAIL_COMM] : 0;

	return length && s->tid == s->tgid && now_ns - p->details_read >= RENAME_WAIT_NS &&
	       (length != strnlen(s->comm, sizeof(s->comm)) || memcmp(d->text + d->length[GS_DETAIL_STAT], s->comm, length));
}

int gs_mappings_sampled(struct gs_mappings *m, const struct gs_sample *s, uint64_t now_ns)
{
	struct gs_cached *p = seen(m, s->tgid, s->start_boottime, now_ns);
	enum gs_reason reason = reason_of(s->flags);
	int answer;

	if (!p)
		return gs_listing_failed(m, ENOMEM);
	if (s->flags & GS_SAMPLE_KTHREAD)
		return p->details ? GS_LISTING_CACHED : details_only(m, p, now_ns);
	if (renamed(p, s, now_ns))
		details_only(m, p, now_ns);
	if (gs_pythons_due(p, now_ns))
		gs_pythons_attach(m->pythons, p, now_ns);
	if (!is_due(p, s, reason, now_ns))
		return p->ended ? p->answer : GS_LISTING_CACHED;
	answer = list_now(m, p, s->tid, reason, now_ns);
	keep_bounds(m, p, now_ns);
	return answer;
}

/* 1 = gone. */
static int is_gone(struct gs_mappings *m, const struct gs_cached *p)
{
	int process = gs_process_open(&m->proc, p->tgid), gone = process == -ENOENT;
	struct gs_stamp stamp;

	if (process < 0)
		return gone;
	if (!gs_process_stamp(process, 0, &stamp))
		gone = !gs_process_started(&m->proc, stamp.start_ticks, p->start_boottime);
	close(process);
	return gone;
}

void gs_mappings_tick(struct gs_mappings *m, uint64_t now_ns)
{
	struct gs_cached *p = m->cache.oldest, *newer;
	int checks = 0;

	gs_blocks_reap(&m->blocks, now_ns);
	for (; p && p->last_sampled + RELIST_NS < now_ns; p = newer) {
		newer = p->newer;
		if (!p->ended && checks < CHECKS_A_TICK && p->last_checked + RELIST_NS < now_ns) {
			checks++;
			p->last_checked = now_ns;
			if (is_gone(m, p))
				end(m, p, now_ns);
		}
		if (p->ended && p->ended + KEEP_GONE_NS < now_ns)
			forget(m, p, now_ns);
	}
	gs_make_room(m, m->blocks.total / 8, RELIST_NS, now_ns);
}

static const struct gs_row *row_of(const struct gs_cached *p, uint64_t address)
{
	uint32_t low = 0, high = p->count;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (p->rows[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low < p->count && p->rows[low].start <= address ? &p->rows[low] : NULL;
}

struct gs_place gs_mappings_normalize(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t address)
{
	const struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);
	const struct gs_row *r = p ? row_of(p, address) : NULL;

	if (!r)
		return (struct gs_place){.kind = p && p->count ? GS_PLACE_UNMAPPED : GS_PLACE_NO_PROCESS, .offset = address};
	switch (r->kind) {
	case GS_PLACE_NATIVE:
		return (struct gs_place){GS_PLACE_NATIVE, r->file_id, address - r->start + r->file_offset};
	case GS_PLACE_VDSO:
		return (struct gs_place){GS_PLACE_VDSO, 0, address - r->start};
	default:
		return (struct gs_place){GS_PLACE_ANONYMOUS, 0, address};
	}
}

int gs_mappings_rule(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t address, struct gs_rule *rule)
{
	const struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);
	const struct gs_row *r = p ? row_of(p, address) : NULL;
	const struct gs_mapping *published;

	*rule = (struct gs_rule){ .cfa = GS_CFA_NONE };
	if (!r)
		return 0;
	if (m->blocks.mapped && p->published == p->count) {
		published = &m->blocks.mapped[p->first + (uint32_t)(r - p->rows)];
		*rule = gs_tables_find(m->tables, published->table, address - published->start + published->file_offset);
	}
	return 1;
}

uint64_t gs_mappings_start_stack(const struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime)
{
	const struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);

	return p ? p->start_stack : 0;
}

struct gs_place gs_mappings_hint(struct gs_mappings *m, const struct gs_leaf_hint *hint)
{
	int ambiguous;
	uint32_t id = gs_files_by_inode(m->files, hint->device, hint->inode, &ambiguous);

	m->counters[id ? GS_MAPPING_hint_found : ambiguous ? GS_MAPPING_hint_ambiguous : GS_MAPPING_hint_unknown]++;
	return (struct gs_place){.kind = id ? GS_PLACE_NATIVE : GS_PLACE_NO_PROCESS, .file_id = id, .offset = hint->file_offset};
}

/* A process not known to be gone that maps the file. Only for files whose own last sight is gone: a scan of all rows. */
static int find_sight(void *context, uint32_t file_id, struct gs_sight *out)
{
	struct gs_mappings *m = context;

	for (struct gs_cached *p = m->cache.newest; p; p = p->older) {
		for (uint32_t i = 0; !p->ended && i < p->count; i++) {
			const struct gs_row *r = &p->rows[i];

			if (r->file_id != file_id || p->tgid == out->pid)
				continue;
			out->pid = p->tgid;
			out->start_boottime = p->start_boottime;
			out->start = r->start;
			out->end = r->end;
			return 0;
		}
	}
	return -1;
}

int gs_mappings_take_file(struct gs_mappings *m, struct gs_file_record *out)
{
	return gs_files_take(m->files, out, find_sight, m);
}

int gs_mappings_details(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, struct gs_process_details *out)
{
	const struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);

	if (!p || !p->details)
		return 0;
	memcpy(out, p->details, p->details_bytes);
	return 1;
}

const struct gs_python *gs_mappings_python(const struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime)
{
	const struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);

	return p ? p->python : NULL;
}

void gs_mappings_new_epoch(struct gs_mappings *m)
{
	gs_files_new_epoch(m->files);
	gs_pythons_new_epoch(m->pythons);
}

int gs_mappings_wants_epoch(const struct gs_mappings *m)
{
	return gs_files_wants_epoch(m->files);
}

int gs_mappings_rows(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, struct gs_row *out, uint32_t room)
{
	const struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);

	if (!p)
		return -1;
	if (p->count && room)
		memcpy(out, p->rows, (room < p->count ? room : p->count) * sizeof(*out));
	return (int)p->count;
}
