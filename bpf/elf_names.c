/* SPDX-License-Identifier: Apache-2.0 */
#include "elf_names.h"

#include <stdlib.h>
#include <string.h>

#include "elf_symbols.h"

#define BUCKETS 16384
#define SPAN_BUDGET (64ull << 20) /* visits of addresses by symbols: symbols that all cover all addresses cost n * m */
#define TIE_BUDGET 100000    /* names compared for aliases: a file of a million aliases costs no more than this */

struct pass {
	const struct gs_elf *elf;
	const uint64_t *addresses;
	uint32_t n;
	uint32_t *bucket; /* first address of a bucket and after */
	unsigned shift;
	uint64_t spans, ties;
	struct gs_symbol *inside; /* innermost sized symbol that contains the address */
	struct gs_symbol *before; /* nearest symbol at or before it, whether or not it contains it */
	uint64_t *next;        /* nearest start after it */
};

/* ---- addresses by bucket: one step per symbol where a binary search takes ten ---- */

static void fill_buckets(struct pass *pass)
{
	uint64_t span = pass->addresses[pass->n - 1] - pass->addresses[0];
	uint32_t i = 0;

	while ((span >> pass->shift) >= BUCKETS)
		pass->shift++;
	for (uint32_t b = 0; b < BUCKETS; b++) {
		while (i < pass->n && ((pass->addresses[i] - pass->addresses[0]) >> pass->shift) < b)
			i++;
		pass->bucket[b] = i;
	}
}

/* Index of the first address >= value; n if there is none. */
static inline uint32_t first_at(const struct pass *pass, uint64_t value)
{
	uint32_t i;

	if (value <= pass->addresses[0])
		return 0;
	if (value > pass->addresses[pass->n - 1])
		return pass->n;
	i = pass->bucket[(value - pass->addresses[0]) >> pass->shift];
	if (pass->n - i > 32 && pass->addresses[i + 32] < value) { /* many addresses in one bucket */
		uint32_t low = i + 32, high = pass->n;
		while (high - low > 1) {
			uint32_t middle = low + (high - low) / 2;
			if (pass->addresses[middle] < value)
				low = middle;
			else
				high = middle;
		}
		return high;
	}
	while (pass->addresses[i] < value)
		i++;
	return i;
}

/* ---- which of two symbols names an address better ---- */

static size_t read_name(const struct gs_elf *elf, const struct gs_symbol *symbol, char *to, size_t limit)
{
	size_t done = 0;

	if (!symbol->name)
		return 0;
	while (done < limit && symbol->name + done < symbol->name_end) {
		size_t piece = limit - done < 256 ? limit - done : 256;
		char *end;
		if (piece > symbol->name_end - symbol->name - done)
			piece = (size_t)(symbol->name_end - symbol->name - done);
		if (!gs_elf_read(elf, to + done, piece, symbol->name + done))
			return 0;
		end = memchr(to + done, 0, piece);
		if (end)
			return (size_t)(end - to);
		done += piece;
	}
	return done;
}

/* Equal starts are aliases: visible outside the file beats local, then what people write: fewer leading underscores
 * (write, not __write), strong before weak, shorter, alphabetical. So a name does not depend on the order of the table. */
static int alias_is_better(struct pass *pass, const struct gs_symbol *a, const struct gs_symbol *b)
{
	char name_a[256], name_b[256];
	size_t length_a, length_b, under_a, under_b;

	if ((a->rank & 4) != (b->rank & 4))
		return (a->rank & 4) < (b->rank & 4);
	if (pass->ties++ >= TIE_BUDGET)
		return 0;
	length_a = read_name(pass->elf, a, name_a, sizeof name_a - 1);
	length_b = read_name(pass->elf, b, name_b, sizeof name_b - 1);
	name_a[length_a] = name_b[length_b] = 0;
	if (!length_a || !length_b)
		return length_a > length_b;
	under_a = strspn(name_a, "_");
	under_b = strspn(name_b, "_");
	if (under_a != under_b)
		return under_a < under_b;
	if (a->rank != b->rank)
		return a->rank < b->rank;
	if (length_a != length_b)
		return length_a < length_b;
	return strcmp(name_a, name_b) < 0;
}

static inline void offer(struct pass *pass, struct gs_symbol *best, const struct gs_symbol *symbol)
{
	if (best->section && best->start > symbol->start)
		return;
	if (!best->section || best->start < symbol->start || alias_is_better(pass, symbol, best))
		*best = *symbol;
}

static void place(struct pass *pass, const struct gs_symbol *symbol)
{
	uint32_t at = first_at(pass, symbol->start);
	uint32_t earlier = at; /* the last address before the symbol, with those that equal it */

	if (earlier && symbol->start < pass->next[earlier - 1])
		pass->next[earlier - 1] = symbol->start;
	if (at == pass->n)
		return;
	/* a symbol with a size wins over a label at the same place, as `before` decides gaps by it */
	if (!pass->before[at].section || symbol->start > pass->before[at].start ||
	    (symbol->start == pass->before[at].start && symbol->size && !pass->before[at].size))
		pass->before[at] = *symbol;
	else if (symbol->start == pass->before[at].start && !symbol->size == !pass->before[at].size)
		offer(pass, &pass->before[at], symbol);
	for (uint32_t i = at; i < pass->n && pass->addresses[i] - symbol->start < symbol->size; i++) {
		if (pass->spans++ >= SPAN_BUDGET)
			return;
		offer(pass, &pass->inside[i], symbol);
	}
}

static const char *take_place(void *context, const struct gs_symbol *symbol, uint64_t number)
{
	place(context, symbol);
	return NULL;
}

/* ---- by index ---- */

#define WALK_BUDGET (1u << 20) /* rows looked at in one request */

static const char *place_row(struct pass *pass, const struct gs_elf_index_row *row)
{
	const struct gs_elf *elf = pass->elf;
	const Elf64_Shdr *table = gs_symbol_table(elf, gs_symbol_tables[row->number >> 31]);
	uint64_t number = row->number & ~GS_INDEX_DYNAMIC;
	struct gs_symbol symbol;
	Elf64_Sym raw;

	if (!table || number >= table->sh_size / sizeof raw || gs_symbol_table_check(elf, table) ||
	    !gs_elf_read(elf, &raw, sizeof raw, table->sh_offset + number * sizeof raw))
		return "file changed while it was read";
	if (gs_symbol_take(elf, &elf->sections[table->sh_link], &raw, &symbol))
		place(pass, &symbol);
	return NULL;
}

/* Rows that start at or before the address: the nearest with its aliases, and all that reach past it; then the next. */
static const char *place_around(struct pass *pass, const struct gs_elf_index *index, uint64_t address, uint32_t *walked)
{
	uint64_t from_base = address < index->base ? 0 : address - index->base;
	uint32_t low = 0, high = index->count;
	const char *reason = NULL;

	if (address < index->base)
		high = 0;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (index->rows[middle].start <= from_base)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < index->count)
		reason = place_row(pass, &index->rows[low]);
	for (uint32_t at = low; !reason && at-- > 0 && (*walked)++ < WALK_BUDGET;) {
		const struct gs_elf_index_row *row = &index->rows[at];
		if (row->start != index->rows[low - 1].start && row->reach <= from_base && row->reach != UINT32_MAX)
			break;
		reason = place_row(pass, row);
	}
	return reason;
}

static const char *place_by_index(struct pass *pass, const struct gs_elf_index *index)
{
	uint32_t walked = 0;
	const char *reason = NULL;

	for (uint32_t i = 0; !reason && i < pass->n; i++)
		reason = place_around(pass, index, pass->addresses[i], &walked);
	return reason;
}

/* ---- answers ---- */

static void spread(struct pass *pass)
{
	for (uint32_t i = 1; i < pass->n; i++)
		if (!pass->before[i].section || pass->before[i].start < pass->before[i - 1].start)
			if (pass->before[i - 1].section)
				pass->before[i] = pass->before[i - 1];
	for (uint32_t i = pass->n - 1; i > 0; i--)
		if (pass->next[i] < pass->next[i - 1])
			pass->next[i - 1] = pass->next[i];
}

/* End of the section that holds symbol and address; 0 if it does not hold both. */
static uint64_t common_section_end(const struct gs_elf *elf, const struct gs_symbol *symbol, uint64_t address)
{
	const Elf64_Shdr *section;

	if (symbol->section >= elf->n_sections)
		return 0;
	section = &elf->sections[symbol->section];
	if (symbol->start < section->sh_addr || address - section->sh_addr >= section->sh_size)
		return 0;
	return section->sh_size > GS_NO_END - section->sh_addr ? GS_NO_END : section->sh_addr + section->sh_size;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static const struct gs_symbol *answer(struct pass *pass, uint32_t i, struct gs_elf_name *out)
{
	const struct gs_symbol *inside = &pass->inside[i], *before = &pass->before[i];
	uint64_t address = pass->addresses[i], end;

	memset(out, 0, sizeof *out);
	out->high = pass->next[i];
	if (inside->section) {
		out->how = GS_NAME_SIZED;
		out->start = inside->start;
		/* another symbol begins and ends between: its own addresses are not ours */
		out->low = before->start == inside->start ? inside->start : address;
		out->high = smaller(out->high, gs_symbol_end(inside));
		return inside;
	}
	if (!before->section) {
		out->low = address;
		return NULL;
	}
	if (!before->size && (end = common_section_end(pass->elf, before, address))) {
		out->how = GS_NAME_NEAREST;
		out->start = out->low = before->start;
		out->high = smaller(out->high, end);
		return before;
	}
	out->low = before->size ? gs_symbol_end(before) : address;
	if (out->low > address) /* the span budget ran out before this address */
		out->low = address;
	return NULL;
}

static void write_answers(struct pass *pass, struct gs_elf_name *out, char *text, uint32_t text_size)
{
	const struct gs_symbol *last = NULL;
	uint32_t used = 0;

	for (uint32_t i = 0; i < pass->n; i++) {
		const struct gs_symbol *symbol = answer(pass, i, &out[i]);
		size_t length;
		if (!symbol)
			continue;
		if (last && last->name == symbol->name && out[i - 1].length) {
			out[i].text = out[i - 1].text;
			out[i].length = out[i - 1].length;
			continue;
		}
		last = NULL;
		if (text_size - used < GS_NAME_MAX) {
			out[i].how = GS_NAME_NO_ROOM;
			continue;
		}
		length = read_name(pass->elf, symbol, text + used, GS_NAME_MAX);
		if (!length)
			out[i].how = GS_NAME_NONE;
		out[i].text = used;
		out[i].length = (uint32_t)length;
		used += (uint32_t)length;
		last = symbol;
	}
}

static int sorted(const uint64_t *addresses, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (addresses[i] < addresses[i - 1])
			return 0;
	return 1;
}

static int is_of(const struct gs_elf_index *index, const struct stat *status)
{
	return index->size == status->st_size && index->mtime == status->st_mtim.tv_sec * 1000000000ll + status->st_mtim.tv_nsec;
}

const char *gs_elf_names(int fd, const struct gs_elf_index *index, const uint64_t *addresses, uint32_t n, struct gs_elf_name *out,
			 char *text, uint32_t text_size)
{
	int second;
	struct gs_elf elf;
	struct stat status;
	const char *reason;
	struct pass pass = {.elf = &elf, .addresses = addresses, .n = n};

	if (!n || n > 1u << 20 || text_size < GS_NAME_MAX || !sorted(addresses, n))
		return "bad request";
	if (fstat(fd, &status))
		return "file gone";
	if (index && !is_of(index, &status))
		return "file changed since its index was made";
	reason = gs_elf_open(&elf, fd);
	if (reason)
		return reason;
	pass.bucket = malloc(BUCKETS * sizeof *pass.bucket);
	pass.inside = calloc(n, sizeof *pass.inside);
	pass.before = calloc(n, sizeof *pass.before);
	pass.next = malloc(n * sizeof *pass.next);
	reason = "out of memory";
	if (pass.bucket && pass.inside && pass.before && pass.next) {
		memset(pass.next, 0xff, n * sizeof *pass.next);
		fill_buckets(&pass);
		reason = index ? place_by_index(&pass, index) : gs_symbols_each(&elf, take_place, &pass, &second);
		if (!reason) {
			spread(&pass);
			write_answers(&pass, out, text, text_size);
			if (gs_file_changed(fd, &status))
				reason = "file changed while it was read";
		}
	}
	free(pass.bucket);
	free(pass.inside);
	free(pass.before);
	free(pass.next);
	gs_elf_close(&elf);
	return reason;
}
