// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "mappings_state.h"

void gs_withdraw(struct gs_mappings *m, struct gs_cached *p, uint64_t now_ns)
{
	if (!p->published)
		return;
	gs_blocks_unpublish(&m->blocks, p->tgid);
	gs_blocks_retire(&m->blocks, p->first, p->published, now_ns);
	p->published = 0;
}

void gs_make_room(struct gs_mappings *m, uint32_t wanted, uint64_t idle_ns, uint64_t now_ns)
{
	uint32_t coming = m->blocks.free_rows;

	for (uint32_t i = 0; i < m->blocks.retired_count; i++)
		coming += m->blocks.retired[i].extent.count;
	for (struct gs_cached *p = m->cache.oldest; p && coming < wanted && p->last_sampled + idle_ns < now_ns; p = p->newer) {
		coming += p->published;
		gs_withdraw(m, p, now_ns);
	}
}

/* Rows as the BPF side wants them. A process with more than fit keeps those of files: JIT code lies in the others. */
static uint32_t fill_rows(struct gs_mappings *m, const struct gs_cached *p, const uint32_t *tables)
{
	int files_only = p->count > GS_MAX_MAPPINGS;
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count && n < GS_MAX_MAPPINGS; i++) {
		const struct gs_row *r = &p->rows[i];
		int anonymous = r->kind == GS_PLACE_ANONYMOUS; /* JIT code: rows of its table are by address */
		int fits = anonymous || r->file_offset + (r->end - r->start) <= GS_OFFSET_MASK;

		if (files_only && !r->file_id)
			continue;
		m->scratch[n++] = (struct gs_mapping){.start = r->start, .end = r->end, .file_offset = anonymous ? r->start : r->file_offset,
			.file_id = fits ? r->file_id : 0, .table = fits ? tables[i] : 0};
	}
	m->counters[GS_MAPPING_rows_left_out] += p->count - n;
	return n;
}

static int publish_entry(struct gs_mappings *m, const struct gs_cached *p, uint32_t first, uint32_t count)
{
	struct gs_process entry = {.start_boottime = p->start_boottime, .exec_vm = p->exec_vm, .start_stack = p->start_stack,
		.first = first, .count = count};
	int error = gs_blocks_publish(&m->blocks, p->tgid, &entry);

	if (error == E2BIG) { /* procs is full of processes that are not sampled any more */
		for (struct gs_cached *old = m->cache.oldest; old && old != p; old = old->newer) {
			if (!old->published)
				continue;
			gs_withdraw(m, old, p->last_listed);
			break;
		}
		error = gs_blocks_publish(&m->blocks, p->tgid, &entry);
	}
	m->counters[GS_MAPPING_publish_failed] += error != 0;
	return error;
}

static int same_rows(struct gs_mappings *m, const struct gs_cached *p, uint32_t n)
{
	return p->published == n && m->blocks.mapped && !memcmp(m->blocks.mapped + p->first, m->scratch, n * sizeof(*m->scratch));
}

void gs_publish(struct gs_mappings *m, struct gs_cached *p, const uint32_t *tables, uint64_t now_ns)
{
	uint32_t n, first;

	if (!m->blocks.total)
		return; /* no BPF maps: names only */
	n = fill_rows(m, p, tables);
	if (same_rows(m, p, n)) {
		publish_entry(m, p, p->first, n); /* the stamp may be new */
		return;
	}
	first = gs_blocks_take(&m->blocks, n);
	if (first == GS_BLOCKS_NONE) {
		m->counters[GS_MAPPING_rows_no_room] += n > 0;
		gs_withdraw(m, p, now_ns);
		gs_make_room(m, m->blocks.total / 8 + n, 2 * GS_SECOND, now_ns);
		return;
	}
	if (gs_blocks_write(&m->blocks, first, m->scratch, n) || publish_entry(m, p, first, n)) {
		gs_blocks_retire(&m->blocks, first, n, now_ns);
		gs_withdraw(m, p, now_ns);
		return;
	}
	gs_blocks_retire(&m->blocks, p->first, p->published, now_ns);
	p->first = first;
	p->published = n;
}
