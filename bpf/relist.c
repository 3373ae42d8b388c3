// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mappings_state.h"
#include "tables.h"

static void count_failure(struct gs_mappings *m, int error)
{
	m->counters[error == EACCES || error == EPERM	? GS_MAPPING_listing_denied
		    : error == EMFILE || error == ENFILE ? GS_MAPPING_listing_no_descriptors
							 : GS_MAPPING_listing_failed]++;
}

int gs_listing_failed(struct gs_mappings *m, int error)
{
	if (error == ENOENT || error == ESRCH || error == ENOTDIR) {
		m->counters[GS_MAPPING_process_gone]++;
		return GS_LISTING_GONE;
	}
	count_failure(m, error);
	return GS_LISTING_FAILED;
}

void gs_read_details(struct gs_mappings *m, struct gs_cached *p, int process)
{
	struct gs_process_details details = {.tgid = p->tgid, .uid = UINT32_MAX, .start_boottime = p->start_boottime, .gone = process < 0};

	if (p->details && process < 0)
		return; /* what was read while it lived is better */
	if (process >= 0)
		gs_process_read_details(process, &details);
	gs_cache_set_details(&m->cache, p, &details);
}

/* A fork becomes another program: other stack, other first mapping. */
static int is_exec(const struct gs_cached *p, const struct gs_row *rows, uint32_t count, const struct gs_stamp *stamp)
{
	return p->count && count && (p->start_stack != stamp->start_stack || p->rows[0].inode != rows[0].inode || p->rows[0].device != rows[0].device);
}

/* Row `old` of the last listing, if it is this mapping still: the file need not be looked at again. */
static const struct gs_row *carried(const struct gs_cached *p, uint32_t *old, const struct gs_vma *v)
{
	const struct gs_row *r;

	while (*old < p->count && p->rows[*old].start < v->start)
		++*old;
	r = &p->rows[*old];
	return *old < p->count && r->start == v->start && r->end == v->end && r->file_offset == v->file_offset && r->device == v->device &&
		       r->inode == v->inode && r->kind == GS_PLACE_NATIVE ? r : NULL;
}

/* Every 64-bit process has the same vdso, so one table under a key of its own serves them all. */
static uint32_t table_of(struct gs_mappings *m, struct gs_cached *p, const struct gs_row *row, const struct gs_sight *sight, uint64_t now_ns)
{
	if (row->kind == GS_PLACE_ANONYMOUS)
		return gs_jit_table_of(m, p, row, now_ns);
	if (m->tables && row->kind == GS_PLACE_VDSO)
		return gs_tables_want(m->tables, NULL, UINT64_MAX, m->vdso, now_ns);
	return m->tables && row->file_id ? gs_files_table(m->files, m->tables, row->file_id, sight, now_ns) : 0;
}

static struct gs_row *make_rows(struct gs_mappings *m, struct gs_cached *p, int process, uint32_t *tables, uint64_t now_ns)
{
	struct gs_row *rows = calloc(m->list.count + 1, sizeof(*rows));
	uint32_t old = 0;

	for (uint32_t i = 0; rows && i < m->list.count; i++) {
		const struct gs_vma *v = &m->list.vmas[i];
		struct gs_sight sight = {.process = process, .pid = p->tgid, .start_boottime = p->start_boottime, .start = v->start, .end = v->end,
			.device = v->device, .inode = v->inode, .list = &m->list, .vma = v};
		const struct gs_row *before = carried(p, &old, v);
		uint32_t id = !v->inode ? 0 : before ? before->file_id : gs_files_identify(m->files, &sight);

		rows[i] = (struct gs_row){.start = v->start, .end = v->end, .file_offset = v->file_offset, .inode = v->inode, .device = v->device,
			.file_id = id, .flags = v->flags & GS_VMA_WRITABLE,
			.kind = id ? GS_PLACE_NATIVE : v->flags & GS_VMA_VDSO ? GS_PLACE_VDSO : GS_PLACE_ANONYMOUS};
		gs_files_hold(m->files, id);
		tables[i] = table_of(m, p, &rows[i], &sight, now_ns);
		gs_pythons_look(m->pythons, id, i == 0, &sight);
	}
	return rows;
}

static uint64_t executable_pages(const struct gs_vma_list *list)
{
	uint64_t page = sysconf(_SC_PAGESIZE), bytes = 0;

	for (uint32_t i = 0; i < list->count; i++)
		bytes += list->vmas[i].flags & GS_VMA_WRITABLE ? 0 : list->vmas[i].end - list->vmas[i].start;
	return bytes / page;
}

/* Replaces the rows of p by what was listed. */
static int take_listing(struct gs_mappings *m, struct gs_cached *p, int process, const struct gs_stamp *stamp, uint64_t now_ns, int *changed)
{
	uint32_t *tables = calloc(m->list.count + 1, sizeof(*tables));
	struct gs_row *rows = tables ? make_rows(m, p, process, tables, now_ns) : NULL;
	uint64_t exec_vm = executable_pages(&m->list);
	int same;

	if (!rows) {
		free(tables);
		return gs_listing_failed(m, ENOMEM);
	}
	same = p->answer == GS_LISTED && p->count == m->list.count && p->start_stack == stamp->start_stack && p->exec_vm == exec_vm &&
	       !memcmp(p->rows, rows, p->count * sizeof(*rows));
	if (is_exec(p, rows, m->list.count, stamp))
		gs_read_details(m, p, process);
	for (uint32_t i = 0; i < p->count; i++)
		gs_files_release(m->files, p->rows[i].file_id);
	gs_cache_set_rows(&m->cache, p, rows, m->list.count);
	p->exec_vm = exec_vm;
	p->start_stack = stamp->start_stack;
	m->counters[GS_MAPPING_listings_unchanged] += same;
	*changed = !same;
	p->jit_none &= (uint8_t)same;
	gs_publish(m, p, tables, now_ns);
	if (!same || p->python_wait)
		gs_pythons_attach(m->pythons, p, now_ns);
	free(tables);
	return GS_LISTED;
}

/* A zombie leader whose threads live on has no mappings to show; a thread of it has. */
static int list_any(struct gs_mappings *m, const struct gs_cached *p, int process, uint32_t tid)
{
	char name[32];
	int error = gs_list_mappings(process, "maps", &m->no_query, &m->list);

	if ((!error && m->list.count) || !tid || tid == p->tgid || (error && error != ESRCH))
		return error;
	gs_list_done(&m->list);
	snprintf(name, sizeof(name), "task/%u/maps", tid);
	return gs_list_mappings(process, name, &m->no_query, &m->list);
}

static int verify(struct gs_mappings *m, const struct gs_cached *p, int process, uint32_t tid, struct gs_stamp *stamp)
{
	int error = gs_process_stamp(process, tid, stamp);

	if (error)
		return gs_listing_failed(m, error);
	if (gs_process_started(&m->proc, stamp->start_ticks, p->start_boottime))
		return GS_LISTED;
	m->counters[GS_MAPPING_pid_reused]++;
	return GS_LISTING_REUSED;
}

static int list_once(struct gs_mappings *m, struct gs_cached *p, int process, uint32_t tid, uint64_t now_ns, int *torn, int *changed)
{
	struct gs_stamp before, after;
	int answer = verify(m, p, process, tid, &before), error;

	*torn = 0;
	if (answer != GS_LISTED)
		return answer;
	if (!p->details || p->details->gone)
		gs_read_details(m, p, process);
	m->counters[GS_MAPPING_listings]++;
	error = list_any(m, p, process, tid);
	m->counters[GS_MAPPING_listings_by_text] += m->list.by_text;
	m->counters[GS_MAPPING_bad_maps_line] += m->list.bad_lines;
	if (error && error != ESRCH)
		return gs_listing_failed(m, error);
	answer = verify(m, p, process, tid, &after);
	if (answer != GS_LISTED)
		return answer;
	*torn = error || !m->list.count || before.start_stack != after.start_stack;
	return *torn ? GS_LISTING_FAILED : take_listing(m, p, process, &after, now_ns, changed);
}

int gs_list_process(struct gs_mappings *m, struct gs_cached *p, uint32_t tid, uint64_t now_ns, int *changed)
{
	int process = gs_process_open(&m->proc, p->tgid), answer, torn = 0;

	*changed = 0;
	if (process < 0)
		return gs_listing_failed(m, -process);
	answer = list_once(m, p, process, tid, now_ns, &torn, changed);
	if (torn) { /* it called exec: the second listing is of the new program, and exec does not happen every 0.1 ms */
		gs_list_done(&m->list);
		answer = list_once(m, p, process, tid, now_ns, &torn, changed);
		m->counters[m->list.count ? GS_MAPPING_listing_torn : GS_MAPPING_listing_empty] += torn;
	}
	gs_list_done(&m->list);
	close(process);
	return answer;
}
