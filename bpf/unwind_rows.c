/* SPDX-License-Identifier: Apache-2.0 */
#include "unwind_rows.h"

#include <stdlib.h>
#include <string.h>

#include "elf_file.h"

#define MAX_SECTION (256u << 20)
#define MAX_RULES 65535u
#define HASH_SLOTS (1u << 17)
#define PADDING 15 /* bytes between functions that are alignment, not a gap worth a row */

struct function {
	uint64_t start, end; /* file offsets */
	uint32_t first, count; /* rows */
	uint32_t rank; /* 0 .eh_frame, 1 .debug_frame, which gives way */
};

struct raw_row {
	uint32_t delta;
	uint32_t rule;
};

struct builder {
	const struct gs_elf *elf; /* NULL: rows are by address, and functions must lie in [low, high) */
	uint64_t low, high;
	struct function *functions;
	struct raw_row *raw;
	struct gs_rule *rules;
	uint32_t *slots; /* rule number + 1 by hash */
	size_t n_functions, functions_room, n_raw, raw_room;
	uint32_t n_rules, rank;
	int no_memory;
};

/* Room for one more; doubles. */
static int grow(void **array, size_t count, size_t *room, size_t each)
{
	void *larger;

	if (count < *room)
		return 1;
	larger = realloc(*array, (*room ? *room * 2 : 4096) * each);
	if (!larger)
		return 0;
	*array = larger;
	*room = *room ? *room * 2 : 4096;
	return 1;
}

static uint32_t intern_rule(struct builder *b, struct gs_rule rule)
{
	uint64_t bits;
	uint32_t slot;

	memcpy(&bits, &rule, sizeof bits);
	slot = (uint32_t)((bits * 0x9E3779B97F4A7C15ULL) >> 47);
	for (;; slot = (slot + 1) % HASH_SLOTS) {
		if (!b->slots[slot])
			break;
		if (!memcmp(&b->rules[b->slots[slot] - 1], &rule, sizeof rule))
			return b->slots[slot] - 1;
	}
	if (b->n_rules == MAX_RULES)
		return 1; /* GS_CFA_BAD, see prepare() */
	b->rules[b->n_rules] = rule;
	b->slots[slot] = ++b->n_rules;
	return b->n_rules - 1;
}

static int on_function(void *to, uint64_t start, uint64_t size)
{
	struct builder *b = to;
	uint64_t offset = b->elf ? gs_elf_file_offset(b->elf, start) : start;
	uint64_t low = b->elf ? 0 : b->low, high = b->elf ? b->elf->size : b->high;

	/* Outside any executable segment: functions that the linker discarded. */
	if (offset == UINT64_MAX || size > UINT32_MAX || offset < low || offset > high || size > high - offset)
		return 0;
	if (!grow((void **)&b->functions, b->n_functions, &b->functions_room, sizeof *b->functions)) {
		b->no_memory = 1;
		return 0;
	}
	b->functions[b->n_functions++] = (struct function){ offset, offset + size, (uint32_t)b->n_raw, 0, b->rank };
	return 1;
}

static int on_row(void *to, uint64_t delta, struct gs_rule rule)
{
	struct builder *b = to;
	struct function *f = &b->functions[b->n_functions - 1];

	if (delta >= f->end - f->start)
		return 1;
	if (b->n_raw >= UINT32_MAX || !grow((void **)&b->raw, b->n_raw, &b->raw_room, sizeof *b->raw)) {
		b->no_memory = 1;
		return 0;
	}
	b->raw[b->n_raw++] = (struct raw_row){ (uint32_t)delta, intern_rule(b, rule) };
	f->count++;
	return 1;
}

static int by_start(const void *left, const void *right)
{
	const struct function *a = left, *b = right;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	if (a->rank != b->rank)
		return (int)a->rank - (int)b->rank;
	return (a->first > b->first) - (a->first < b->first); /* the one read first: of JIT code the newer */
}

static void sort_functions(struct builder *b)
{
	for (size_t i = 1; i < b->n_functions; i++) {
		if (by_start(&b->functions[i - 1], &b->functions[i]) > 0) {
			qsort(b->functions, b->n_functions, sizeof *b->functions, by_start);
			return;
		}
	}
}

/* Rows of all functions in order of file offset. Each address is covered once: a .debug_frame entry gives way to
 * .eh_frame, and a function ends where the next begins. Equal neighbours merge; what lies between functions is a row. */
struct writer {
	struct gs_rows *out;
	uint64_t last; /* file offset of the last row */
	uint32_t last_rule;
	size_t room;
};

static int put(struct writer *w, uint64_t at, uint32_t rule)
{
	struct gs_rows *out = w->out;

	if (out->count && w->last == at) {
		out->rows[out->count - 1] = (uint32_t)(at & 0xffff) | rule << GS_ROW_RULE_SHIFT;
		w->last_rule = rule;
		return 1;
	}
	if (out->count && w->last_rule == rule)
		return 1;
	if (!out->count)
		out->base = at & ~((1ULL << GS_PAGE_SHIFT) - 1);
	/* Pages that begin at or before this row have it as their first; the index grows with the rows. */
	while (out->base + ((uint64_t)out->pages << GS_PAGE_SHIFT) <= at)
		out->index[out->pages++] = out->count;
	if (out->count >= w->room)
		return 0;
	out->rows[out->count++] = (uint32_t)(at & 0xffff) | rule << GS_ROW_RULE_SHIFT;
	w->last = at;
	w->last_rule = rule;
	return 1;
}

static void write_functions(struct builder *b, struct writer *w)
{
	uint64_t covered = 0;
	size_t looks = 2 * b->n_functions; /* hostile overlaps must not make this quadratic */

	for (size_t i = 0; i < b->n_functions; i++) {
		const struct function *f = &b->functions[i];
		uint64_t end = f->end;

		if (f->start < covered && (f->rank || f->end <= covered))
			continue;
		if (w->out->count && covered + PADDING < f->start)
			put(w, covered, 0);
		for (size_t next = i + 1; next < b->n_functions && b->functions[next].start < end && looks; next++, looks--)
			if (b->functions[next].rank <= f->rank && b->functions[next].start > f->start)
				end = b->functions[next].start;
		for (uint32_t k = 0; k < f->count; k++) {
			uint64_t at = f->start + b->raw[f->first + k].delta;
			if (at < end)
				put(w, at < covered ? covered : at, b->raw[f->first + k].rule);
		}
		covered = end;
	}
	put(w, covered, 0);
}

static const char *finish(struct builder *b, struct gs_rows *out)
{
	struct writer w = { .out = out };
	uint64_t first = b->functions[0].start, last = 0;
	size_t pages;

	for (size_t i = 0; i < b->n_functions; i++)
		last = b->functions[i].end > last ? b->functions[i].end : last;
	pages = (size_t)((last - first) >> GS_PAGE_SHIFT) + 3;
	w.room = b->n_raw + 2 * b->n_functions + 1;
	out->index = malloc(pages * sizeof *out->index);
	out->rows = malloc(w.room * sizeof *out->rows);
	if (!out->index || !out->rows)
		return "out of memory";
	write_functions(b, &w);
	out->index[out->pages] = out->count;
	out->rules = b->rules;
	out->n_rules = b->n_rules;
	b->rules = NULL;
	return NULL;
}

static int prepare(struct builder *b)
{
	b->rules = malloc(MAX_RULES * sizeof *b->rules);
	b->slots = calloc(HASH_SLOTS, sizeof *b->slots);
	if (!b->rules || !b->slots)
		return 0;
	intern_rule(b, (struct gs_rule){ .cfa = GS_CFA_NONE });
	intern_rule(b, (struct gs_rule){ .cfa = GS_CFA_BAD });
	return 1;
}

/* Why the section could not be used, or NULL. */
static const char *walk_section(struct builder *b, const char *name, int debug_frame, struct gs_cfi_counts *counts)
{
	const struct gs_cfi_sink sink = { b, on_function, on_row };
	const Elf64_Shdr *section = gs_elf_section(b->elf, name);
	struct gs_cfi_section cfi = { .debug_frame = debug_frame };
	const char *reason = NULL;
	uint8_t *data;

	if (!section)
		return "no unwind information";
	data = gs_elf_load(b->elf, section, MAX_SECTION, &cfi.size, &reason);
	if (!data)
		return reason;
	cfi.data = data;
	cfi.vaddr = section->sh_addr;
	b->rank = (uint32_t)debug_frame;
	if (!gs_cfi_walk(&cfi, &sink, counts))
		reason = "unwind information breaks off";
	free(data);
	return reason;
}

/* Sections may be stripped away while the segments stay: .eh_frame is then found through PT_GNU_EH_FRAME. */
static const char *walk_segment(struct builder *b, struct gs_cfi_counts *counts)
{
	const struct gs_cfi_sink sink = { b, on_function, on_row };
	struct gs_cfi_section cfi = { 0 };
	uint8_t head[8];
	int32_t distance;

	for (unsigned i = 0; i < b->elf->header.e_phnum; i++) {
		const Elf64_Phdr *s = &b->elf->segments[i];
		if (s->p_type != PT_GNU_EH_FRAME || !gs_elf_read(b->elf, head, sizeof head, s->p_offset) || head[0] != 1 || head[1] != 0x1b)
			continue;
		memcpy(&distance, head + 4, sizeof distance);
		cfi.vaddr = s->p_vaddr + 4 + (uint64_t)(int64_t)distance;
		for (unsigned k = 0; k < b->elf->header.e_phnum; k++) {
			const Elf64_Phdr *load = &b->elf->segments[k];
			uint8_t *data;
			if (load->p_type != PT_LOAD || cfi.vaddr < load->p_vaddr || cfi.vaddr - load->p_vaddr >= load->p_filesz)
				continue;
			cfi.size = load->p_filesz - (cfi.vaddr - load->p_vaddr);
			data = cfi.size <= MAX_SECTION ? malloc(cfi.size) : NULL;
			if (data && gs_elf_read(b->elf, data, cfi.size, load->p_offset + (cfi.vaddr - load->p_vaddr))) {
				cfi.data = data;
				gs_cfi_walk(&cfi, &sink, counts); /* its end is not known: it breaks off behind the terminator */
			}
			free(data);
			return data ? NULL : "section too large";
		}
	}
	return "no unwind information";
}

static const char *build(struct builder *b, struct gs_rows *out)
{
	const char *eh = gs_elf_section(b->elf, ".eh_frame") ? walk_section(b, ".eh_frame", 0, &out->counts) :
							      walk_segment(b, &out->counts);

	walk_section(b, ".debug_frame", 1, &out->counts); /* an extra; without it .eh_frame stands alone */
	if (b->no_memory)
		return "out of memory";
	if (!b->n_functions)
		return eh ? eh : "no unwind information";
	sort_functions(b);
	return finish(b, out);
}

static void release(struct builder *b)
{
	free(b->functions);
	free(b->raw);
	free(b->rules);
	free(b->slots);
}

const char *gs_rows_build(int fd, struct gs_rows *rows)
{
	struct gs_elf elf;
	struct builder b = { .elf = &elf };
	const char *reason = gs_elf_open(&elf, fd);

	memset(rows, 0, sizeof *rows);
	if (reason)
		return reason;
	reason = prepare(&b) ? build(&b, rows) : "out of memory";
	if (reason)
		gs_rows_free(rows);
	release(&b);
	gs_elf_close(&elf);
	return reason;
}

static const char *build_in_memory(struct builder *b, const struct gs_cfi_section *sections, uint32_t n, struct gs_rows *out)
{
	const struct gs_cfi_sink sink = { b, on_function, on_row };

	if (!prepare(b))
		return "out of memory";
	for (uint32_t i = 0; i < n; i++)
		gs_cfi_walk(&sections[i], &sink, &out->counts); /* what one that breaks off gave before stands */
	if (b->no_memory)
		return "out of memory";
	if (!b->n_functions)
		return "no unwind information";
	sort_functions(b);
	return finish(b, out);
}

const char *gs_rows_build_in_memory(const struct gs_cfi_section *sections, uint32_t n, uint64_t low, uint64_t high, struct gs_rows *rows)
{
	struct builder b = { .low = low, .high = high };
	const char *reason;

	memset(rows, 0, sizeof *rows);
	reason = build_in_memory(&b, sections, n, rows);
	if (reason)
		gs_rows_free(rows);
	release(&b);
	return reason;
}

void gs_rows_free(struct gs_rows *rows)
{
	free(rows->index);
	free(rows->rows);
	free(rows->rules);
	memset(rows, 0, sizeof *rows);
}

struct gs_rule gs_rows_find(const struct gs_rows *rows, uint64_t file_offset)
{
	uint64_t page = (file_offset - rows->base) >> GS_PAGE_SHIFT;
	uint32_t low, high;

	if (file_offset < rows->base || page >= rows->pages)
		return (struct gs_rule){ .cfa = GS_CFA_NONE };
	low = rows->index[page];
	high = rows->index[page + 1];
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if ((rows->rows[middle] & 0xffff) <= (file_offset & 0xffff))
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return (struct gs_rule){ .cfa = GS_CFA_NONE };
	return rows->rules[rows->rows[low - 1] >> GS_ROW_RULE_SHIFT];
}
