/* SPDX-License-Identifier: Apache-2.0 */
/* JIT code of the processes in the cache: when to look for it, and its tables to the BPF maps. */
#include <stdlib.h>
#include <string.h>

#include "mappings_state.h"
#include "tables.h"

#define FIRST_WAIT_NS (100 * GS_MS)
#define LAST_WAIT_NS (5 * GS_SECOND)
#define SHARE 100 /* at most a hundredth of a core for one process: a hostile list is no shorter for being read again */

static int is_due(const struct gs_cached *p, int found, uint64_t now_ns)
{
	uint64_t wait = found && !p->jit_rebuild ? LAST_WAIT_NS : p->jit_wait;

	return !p->jit_pending && !p->ended && (!p->jit_none || p->jit_rebuild) && now_ns - p->jit_asked >= wait;
}

static void ask(struct gs_mappings *m, struct gs_cached *p, uint64_t now_ns)
{
	p->jit_asked = now_ns;
	p->jit_pending = (uint8_t)gs_jits_ask(m->jits, p->tgid, p->start_boottime, p->rows, p->count, p->jit_rebuild);
	m->counters[p->jit_pending ? GS_MAPPING_jit_asked : GS_MAPPING_jit_queue_full]++;
	p->jit_rebuild &= !p->jit_pending;
	if (!p->jit_wait)
		p->jit_wait = FIRST_WAIT_NS;
}

const struct gs_jit_function *gs_mappings_jit(struct gs_mappings *m, uint32_t tgid, uint64_t start_boottime, uint64_t address,
					      uint64_t now_ns, const struct gs_jit_view **view)
{
	struct gs_cached *p = gs_cache_find(&m->cache, tgid, start_boottime);
	const struct gs_jit_function *f = p && p->jit ? gs_jit_find(p->jit, address) : NULL;

	*view = f ? p->jit : NULL;
	if (p && is_due(p, f != NULL, now_ns))
		ask(m, p, now_ns);
	return f;
}

uint32_t gs_jit_table_of(struct gs_mappings *m, struct gs_cached *p, const struct gs_row *row, uint64_t now_ns)
{
	int several = 0;
	uint32_t table = m->tables && p->jit ? gs_jit_table(p->jit, row->start, row->end, &several) : 0;

	if (table && !gs_tables_touch(m->tables, table, now_ns)) {
		table = 0; /* it had to make room */
		p->jit_rebuild = 1;
	}
	p->jit_rebuild |= (uint8_t)several;
	return table;
}

static int has_table(const struct gs_jit_view *view, uint32_t table)
{
	for (uint32_t i = 0; view && i < view->n_extents; i++)
		if (view->extents[i].table == table)
			return 1;
	return 0;
}

/* Tables that only the old view names go once no mapping names them any more. */
static void replace_view(struct gs_mappings *m, struct gs_cached *p, struct gs_jit_view *view)
{
	struct gs_jit_view *old = p->jit;

	p->jit = view;
	for (uint32_t i = 0; old && m->tables && i < old->n_extents; i++)
		if (!has_table(view, old->extents[i].table))
			gs_tables_drop(m->tables, old->extents[i].table);
	gs_jit_view_free(old);
}

/* In place: a row's range and file offset stay as they are, and a u32 is written at once. */
static void publish_tables(struct gs_mappings *m, struct gs_cached *p, const struct gs_jit_view *view)
{
	int several;

	if (!m->blocks.mapped || p->published != p->count)
		return; /* the next listing brings them */
	for (uint32_t i = 0; i < p->count; i++)
		if (p->rows[i].kind == GS_PLACE_ANONYMOUS)
			__atomic_store_n(&m->blocks.mapped[p->first + i].table,
					 gs_jit_table(view, p->rows[i].start, p->rows[i].end, &several), __ATOMIC_RELEASE);
}

static void set_wait(struct gs_cached *p, const struct gs_jit_view *answer)
{
	uint64_t least = answer->spent_ns * SHARE;

	p->jit_none = !answer->has_list;
	p->jit_wait = answer->changed ? FIRST_WAIT_NS : p->jit_wait * 2;
	if (p->jit_wait > LAST_WAIT_NS)
		p->jit_wait = LAST_WAIT_NS;
	if (p->jit_wait < least)
		p->jit_wait = least;
}

const struct gs_jit_view *gs_mappings_jit_answer(struct gs_mappings *m, uint64_t now_ns)
{
	struct gs_jit_view *answer;

	while ((answer = gs_jits_answer(m->jits))) {
		struct gs_cached *p = gs_cache_find(&m->cache, answer->tgid, answer->start_boottime);

		for (uint32_t i = 0; i < GS_MAPPING_COUNTER_COUNT; i++)
			m->counters[i] += answer->counts[i];
		if (p) {
			p->jit_pending = 0;
			p->jit_asked = now_ns;
			set_wait(p, answer);
		}
		if (p && answer->changed) {
			publish_tables(m, p, answer);
			replace_view(m, p, answer);
			return answer;
		}
		for (uint32_t i = 0; m->tables && i < answer->n_extents; i++)
			gs_tables_drop(m->tables, answer->extents[i].table);
		gs_jit_view_free(answer);
	}
	return NULL;
}

void gs_jit_forget_process(struct gs_mappings *m, struct gs_cached *p)
{
	replace_view(m, p, NULL);
	if (p->jit_asked && m->jits)
		gs_jits_forget(m->jits, p->tgid, p->start_boottime);
}
