/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "elf_names.h"
#include "elf_symbols.h"

struct builder {
	struct gs_elf_index *index;
	uint32_t capacity;
	int second;
	int counting; /* first round */
	uint64_t low, high;
};

static const char *take_row(void *context, const struct gs_symbol *symbol, uint64_t number)
{
	struct builder *builder = context;
	struct gs_elf_index *index = builder->index;
	uint64_t reach;

	if (number >= GS_INDEX_DYNAMIC)
		return "too many symbols";
	if (builder->counting) {
		if (symbol->start < builder->low)
			builder->low = symbol->start;
		if (symbol->start > builder->high)
			builder->high = symbol->start;
		builder->capacity++;
		return NULL;
	}
	if (index->count == builder->capacity || symbol->start < index->base)
		return "file changed while it was read";
	reach = gs_symbol_end(symbol) - index->base;
	index->rows[index->count++] = (struct gs_elf_index_row){
		.start = (uint32_t)(symbol->start - index->base),
		.reach = reach < UINT32_MAX ? (uint32_t)reach : UINT32_MAX,
		.number = (uint32_t)number | (builder->second ? GS_INDEX_DYNAMIC : 0),
	};
	return NULL;
}

/* By start, two digits of 16 bits: 15 ms for libjax where qsort takes 90. */
static int sort_rows(struct gs_elf_index *index)
{
	struct gs_elf_index_row *spare = malloc(index->count * sizeof *spare);
	uint32_t *places = malloc(65536 * sizeof *places);
	int done = spare && places;

	for (unsigned shift = 0; done && shift < 32; shift += 16) {
		uint32_t sum = 0;
		memset(places, 0, 65536 * sizeof *places);
		for (uint32_t i = 0; i < index->count; i++)
			places[index->rows[i].start >> shift & 0xffff]++;
		for (uint32_t digit = 0; digit < 65536; digit++) {
			uint32_t some = places[digit];
			places[digit] = sum;
			sum += some;
		}
		for (uint32_t i = 0; i < index->count; i++)
			spare[places[index->rows[i].start >> shift & 0xffff]++] = index->rows[i];
		memcpy(index->rows, spare, index->count * sizeof *spare);
	}
	free(spare);
	free(places);
	for (uint32_t i = 1; i < index->count; i++)
		if (index->rows[i].reach < index->rows[i - 1].reach)
			index->rows[i].reach = index->rows[i - 1].reach;
	return done;
}

static const char *fill_index(const struct gs_elf *elf, struct gs_elf_index *index)
{
	struct builder builder = {.index = index, .counting = 1, .low = UINT64_MAX};
	const char *reason = gs_symbols_each(elf, take_row, &builder, &builder.second);

	if (reason)
		return reason;
	if (!builder.capacity)
		return "no symbols";
	if (builder.high - builder.low >= UINT32_MAX)
		return "symbols too far apart";
	index->base = builder.low;
	index->rows = malloc(builder.capacity * sizeof *index->rows);
	if (!index->rows)
		return "out of memory";
	builder.counting = 0;
	reason = gs_symbols_each(elf, take_row, &builder, &builder.second);
	if (!reason && !sort_rows(index))
		reason = "out of memory";
	return reason;
}

const char *gs_elf_index_build(int fd, struct gs_elf_index *index)
{
	struct gs_elf elf;
	struct stat status;
	const char *reason;

	memset(index, 0, sizeof *index);
	if (fstat(fd, &status))
		return "file gone";
	reason = gs_elf_open(&elf, fd);
	if (reason)
		return reason;
	index->size = status.st_size;
	index->mtime = status.st_mtim.tv_sec * 1000000000ll + status.st_mtim.tv_nsec;
	reason = fill_index(&elf, index);
	if (!reason && gs_file_changed(fd, &status))
		reason = "file changed while it was read";
	gs_elf_close(&elf);
	if (reason)
		gs_elf_index_free(index);
	return reason;
}

void gs_elf_index_free(struct gs_elf_index *index)
{
	free(index->rows);
	memset(index, 0, sizeof *index);
}
