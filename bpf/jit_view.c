/* SPDX-License-Identifier: Apache-2.0 */
#include "jit_view.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "index.h"
#include "tables.h"
#include "unwind_rows.h"

/* A table's index has a word for each 512 bytes between its first and last function: mappings that lie close share one (XLA maps
 * a page or two per function, 16 KB apart), those far from each other do not. */
#define MAX_GAP (256u << 10)
#define MAX_SPAN (64u << 20)

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

/* All objects read, in the order of their lists; what lists share is told apart by the list's module. */
struct sorted {
	const struct gs_jit_object *object;
	const struct gs_jit_list *list;
	uint32_t order; /* newest first */
};

static int by_low(const void *left, const void *right)
{
	const struct sorted *a = left, *b = right;

	if (a->object->low != b->object->low)
		return a->object->low < b->object->low ? -1 : 1;
	return (a->order > b->order) - (a->order < b->order);
}

static struct sorted *sort_objects(const struct gs_jit_process *p, uint32_t *n)
{
	struct sorted *all;
	uint32_t room = 0;

	*n = 0;
	for (uint32_t i = 0; i < p->n_lists; i++)
		room += p->lists[i].n_objects;
	all = malloc((room + 1) * sizeof(*all));
	for (uint32_t i = 0; all && i < p->n_lists; i++)
		for (uint32_t k = 0; k < p->lists[i].n_objects; k++)
			if (p->lists[i].objects[k].number) {
				all[*n] = (struct sorted){ &p->lists[i].objects[k], &p->lists[i], *n };
				++*n;
			}
	if (all)
		qsort(all, *n, sizeof(*all), by_low);
	return all;
}

struct named {
	struct gs_jit_function f;
	uint32_t order;
};

static int by_start(const void *left, const void *right)
{
	const struct named *a = left, *b = right;

	if (a->f.start != b->f.start)
		return a->f.start < b->f.start ? -1 : 1;
	return (a->order > b->order) - (a->order < b->order);
}

/* Functions by address, each address in one: a function ends where the next begins, and of two at one address (code that was
 * freed and not taken off the list) the one registered last counts. */
static void settle_functions(struct gs_jit_view *view, struct named *all, uint32_t n)
{
	uint32_t kept = 0;

	qsort(all, n, sizeof(*all), by_start);
	for (uint32_t i = 0; i < n; i++) {
		struct gs_jit_function *last = kept ? &view->functions[kept - 1] : NULL;

		if (last && last->start == all[i].f.start)
			continue;
		if (last && last->end > all[i].f.start)
			last->end = all[i].f.start;
		view->functions[kept++] = all[i].f;
	}
	view->n_functions = kept;
}

static void name_functions(const struct gs_jit_process *p, const struct sorted *all, uint32_t n, struct gs_jit_view *view)
{
	size_t text = GS_JIT_MAX_LISTS * GS_JIT_MODULE_MAX, functions = 0, used = 0;
	struct named *named;

	for (uint32_t i = 0; i < n; i++) {
		text += all[i].object->names_size;
		functions += all[i].object->n_symbols;
	}
	view->text = malloc(text);
	view->functions = malloc((functions + 1) * sizeof(*view->functions));
	named = malloc((functions + 1) * sizeof(*named));
	functions = 0;
	if (view->text && view->functions && named) {
		for (uint32_t i = 0; i < p->n_lists; i++)
			memcpy(view->text + i * GS_JIT_MODULE_MAX, p->lists[i].module, GS_JIT_MODULE_MAX);
		used = GS_JIT_MAX_LISTS * GS_JIT_MODULE_MAX;
		for (uint32_t i = 0; i < n; i++) {
			const struct gs_jit_object *o = all[i].object;

			for (uint32_t k = 0; k < o->n_symbols; k++)
				named[functions++] = (struct named){ { o->symbols[k].start, o->symbols[k].end, o->number,
								       (uint32_t)used + o->symbols[k].name,
								       (uint32_t)(all[i].list - p->lists) * GS_JIT_MODULE_MAX }, all[i].order };
			if (o->names_size)
				memcpy(view->text + used, o->names, o->names_size);
			used += o->names_size;
		}
		settle_functions(view, named, (uint32_t)functions);
	}
	free(named);
}

/* Rows of all objects that reach into an extent, the newest first. */
static uint32_t put_table(const struct gs_jit_extent *e, const struct sorted *all, uint32_t n, struct gs_tables *tables,
			  struct gs_jit_view *view)
{
	struct gs_cfi_section *sections = calloc(n + 1, sizeof(*sections));
	struct gs_rows *rows = malloc(sizeof(*rows));
	uint32_t wanted = 0;
	const char *reason = "out of memory";

	for (uint32_t i = 0; sections && i < n; i++)
		if (all[i].object->frames && all[i].object->low < e->high && all[i].object->high > e->low)
			sections[wanted++] = (struct gs_cfi_section){ .data = all[i].object->frames, .size = all[i].object->frames_size,
								      .vaddr = all[i].object->frames_vaddr };
	if (sections && rows)
		reason = gs_rows_build_in_memory(sections, wanted, e->low, e->high, rows);
	free(sections);
	if (!reason) {
		view->counts[GS_MAPPING_jit_tables]++;
		return gs_tables_put(tables, rows, now_ns());
	}
	view->counts[GS_MAPPING_jit_without_rows]++;
	free(rows);
	return 0;
}

/* The extent that a mapping belongs to: the last, if it is near enough. Of a mapping larger than any extent may be, the part that
 * begins with the first object in it. */
static void add_mapping(struct gs_jit_view *view, const struct gs_row *row, uint64_t first)
{
	struct gs_jit_extent *last = view->n_extents ? &view->extents[view->n_extents - 1] : NULL;
	uint64_t low = row->end - row->start <= MAX_SPAN || first < row->start ? row->start : first;
	uint64_t high = row->end - low <= MAX_SPAN ? row->end : low + MAX_SPAN;

	view->counts[GS_MAPPING_jit_no_room] += high != row->end;
	if (last && row->start - last->high <= MAX_GAP && high - last->low <= MAX_SPAN)
		last->high = high;
	else
		view->extents[view->n_extents++] = (struct gs_jit_extent){ .low = low, .high = high };
}

/* The first object that reaches into a mapping, or NULL. */
static const struct gs_jit_object *first_object(const struct gs_row *row, const struct sorted *all, uint32_t n)
{
	uint32_t low = 0, high = n;

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (all[middle].object->high <= row->start)
			low = middle + 1;
		else
			high = middle;
	}
	return low < n && all[low].object->low < row->end ? all[low].object : NULL;
}

static void find_extents(const struct gs_row *rows, uint32_t count, const struct sorted *all, uint32_t n, struct gs_jit_view *view)
{
	view->extents = calloc(count + 1, sizeof(*view->extents));
	for (uint32_t i = 0; view->extents && i < count; i++) {
		const struct gs_jit_object *o = rows[i].kind == GS_PLACE_ANONYMOUS ? first_object(&rows[i], all, n) : NULL;
		if (o)
			add_mapping(view, &rows[i], o->low);
	}
	for (uint32_t i = 0; i < view->n_extents; i++) {
		struct gs_jit_extent *e = &view->extents[i];

		e->signature = gs_mix(e->low, e->high);
		for (uint32_t k = 0; k < n; k++)
			if (all[k].object->low < e->high && all[k].object->high > e->low)
				e->signature = gs_mix(e->signature, all[k].object->number);
	}
}

static uint32_t same_table(const struct gs_jit_process *p, const struct gs_jit_extent *e, struct gs_tables *tables)
{
	for (uint32_t i = 0; i < p->n_extents; i++)
		if (p->extents[i].signature == e->signature && gs_tables_touch(tables, p->extents[i].table, now_ns()))
			return p->extents[i].table;
	return 0;
}

static void remember_extents(struct gs_jit_process *p, const struct gs_jit_view *view)
{
	struct gs_jit_extent *copy = malloc((view->n_extents + 1) * sizeof(*copy));

	free(p->extents);
	p->extents = copy;
	p->n_extents = copy ? view->n_extents : 0;
	if (copy && view->n_extents)
		memcpy(copy, view->extents, view->n_extents * sizeof(*copy));
}

void gs_jit_make_view(struct gs_jit_process *p, const struct gs_row *rows, uint32_t count, struct gs_tables *tables,
		      struct gs_jit_view *view)
{
	uint32_t n;
	struct sorted *all = sort_objects(p, &n);

	if (!all)
		return;
	view->changed = 1;
	name_functions(p, all, n, view);
	if (tables) {
		find_extents(rows, count, all, n, view);
		for (uint32_t i = 0; i < view->n_extents; i++) {
			struct gs_jit_extent *e = &view->extents[i];

			e->table = same_table(p, e, tables);
			if (!e->table)
				e->table = put_table(e, all, n, tables, view);
		}
		remember_extents(p, view);
	}
	free(all);
}

const struct gs_jit_function *gs_jit_find(const struct gs_jit_view *view, uint64_t address)
{
	uint32_t low = 0, high = view->n_functions;

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (view->functions[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low && address < view->functions[low - 1].end ? &view->functions[low - 1] : NULL;
}

uint32_t gs_jit_table(const struct gs_jit_view *view, uint64_t start, uint64_t end, int *several)
{
	uint32_t table = 0;
	int found = 0;

	for (uint32_t i = 0; i < view->n_extents; i++) {
		const struct gs_jit_extent *e = &view->extents[i];

		if (e->low >= end || e->high <= start)
			continue;
		if (!found++)
			table = e->table;
	}
	*several = found > 1;
	return table;
}

void gs_jit_view_free(struct gs_jit_view *view)
{
	if (!view)
		return;
	free(view->functions);
	free(view->extents);
	free(view->text);
	free(view);
}
