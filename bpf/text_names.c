/* SPDX-License-Identifier: Apache-2.0 */
#include "text_names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define PIECE (256u << 10)
#define MAX_KERNEL_SYMBOLS (4u << 20)
#define MAX_KERNEL_TEXT (256u << 20)
#define VISIT_BUDGET (16u << 20) /* rows that all cover all addresses, in a map written to waste our time */

/* Calls `line(context, text, length, file offset)` for each whole line from `*at` on and moves *at past it. */
typedef const char *(*take_line)(void *context, const char *line, size_t length, uint64_t at);

/* Lines longer than a piece are skipped whole and counted in *skipped. */
static const char *each_line(int fd, int seekable, uint64_t *at, uint32_t *skipped, take_line take, void *context)
{
	char *piece = malloc(PIECE);
	const char *reason = piece ? NULL : "out of memory";
	size_t have = 0;
	int skipping = 0;

	while (!reason) {
		ssize_t n = seekable ? pread(fd, piece + have, PIECE - have, (off_t)(*at + have)) : read(fd, piece + have, PIECE - have);
		char *line = piece, *end;
		if (n < 0)
			reason = "unreadable";
		if (n <= 0)
			break;
		have += (size_t)n;
		while (!reason && (end = memchr(line, '\n', have - (size_t)(line - piece)))) {
			if (!skipping)
				reason = take(context, line, (size_t)(end - line), *at);
			skipping = 0;
			*at += (uint64_t)(end - line) + 1;
			line = end + 1;
		}
		have -= (size_t)(line - piece);
		memmove(piece, line, have);
		if (have == PIECE) {
			*skipped += !skipping;
			skipping = 1;
			*at += have;
			have = 0;
		}
	}
	free(piece);
	return reason;
}

/* Digits consumed, 0 if there are none or more than 16. "0x" is tolerated: some runtimes write it. */
static size_t hexadecimal(const char *text, size_t length, uint64_t *value)
{
	size_t i = 0, first;

	if (length > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		i = 2;
	first = i;
	for (*value = 0; i < length && i - first < 17; i++) {
		char c = text[i];
		if (c >= '0' && c <= '9')
			*value = *value << 4 | (uint64_t)(c - '0');
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			*value = *value << 4 | (uint64_t)((c | 32) - 'a' + 10);
		else
			break;
	}
	return i == first || i - first > 16 ? 0 : i;
}

/* ---- kernel ---- */

static int room(struct gs_kernel_symbols *symbols, size_t length)
{
	if (symbols->count == symbols->capacity) {
		uint32_t capacity = symbols->capacity ? symbols->capacity + symbols->capacity / 4 : 131072;
		uint64_t *addresses = realloc(symbols->addresses, capacity * sizeof *addresses);
		uint32_t *names = addresses ? realloc(symbols->names, capacity * sizeof *names) : NULL;
		if (addresses)
			symbols->addresses = addresses;
		if (!names)
			return 0;
		symbols->names = names;
		symbols->capacity = capacity;
	}
	if (symbols->text_capacity - symbols->text_used < length) {
		uint32_t capacity = symbols->text_capacity + (1u << 20);
		char *text = realloc(symbols->text, capacity);
		if (!text)
			return 0;
		symbols->text = text;
		symbols->text_capacity = capacity;
	}
	return 1;
}

static const char *take_kernel_symbol(void *context, const char *line, size_t length, uint64_t at)
{
	struct gs_kernel_symbols *symbols = context;
	uint64_t address;
	size_t digits = hexadecimal(line, length, &address), name = digits + 3;
	char type, *to;
	const char *tab;

	if (!digits || length <= name || length - name > 4096)
		return NULL;
	type = line[digits + 1];
	if ((type | 32) != 't' && (type | 32) != 'w')
		return NULL;
	if (!address) {
		symbols->hidden++;
		return NULL;
	}
	if (symbols->count >= MAX_KERNEL_SYMBOLS || symbols->text_used > MAX_KERNEL_TEXT - 8192)
		return "too many kernel symbols";
	if (!room(symbols, length - name + 2))
		return "out of memory";
	to = symbols->text + symbols->text_used;
	symbols->addresses[symbols->count] = address;
	symbols->names[symbols->count++] = symbols->text_used;
	/* the type goes first while aliases are chosen */
	*to++ = type;
	tab = memchr(line + name, '\t', length - name);
	length -= name;
	memcpy(to, line + name, length);
	if (tab && length > (size_t)(tab - line - name) + 3 && tab[1] == '[' && line[name + length - 1] == ']') {
		size_t before = (size_t)(tab - line - name) + 1;
		memcpy(to + before, tab + 2, length - before - 2);
		length -= 2;
	}
	to[length] = 0;
	symbols->text_used += (uint32_t)length + 2;
	return NULL;
}

struct sortable {
	uint64_t address;
	uint32_t name;
};

/* By address; aliases by: visible outside its file, fewer leading underscores, shorter, alphabetical. */
static int compare(const void *left, const void *right, void *text)
{
	const struct sortable *a = left, *b = right;
	const char *name_a = (char *)text + a->name, *name_b = (char *)text + b->name;
	size_t under_a, under_b, length_a, length_b;

	if (a->address != b->address)
		return a->address < b->address ? -1 : 1;
	if ((*name_a == 't') != (*name_b == 't'))
		return *name_a == 't' ? 1 : -1;
	under_a = strspn(name_a + 1, "_");
	under_b = strspn(name_b + 1, "_");
	if (under_a != under_b)
		return under_a < under_b ? -1 : 1;
	length_a = strlen(name_a);
	length_b = strlen(name_b);
	if (length_a != length_b)
		return length_a < length_b ? -1 : 1;
	return strcmp(name_a, name_b);
}

static const char *sort_symbols(struct gs_kernel_symbols *symbols)
{
	struct sortable *rows = malloc(symbols->count * sizeof *rows + 1);
	uint32_t kept = 0;

	if (!rows)
		return "out of memory";
	for (uint32_t i = 0; i < symbols->count; i++)
		rows[i] = (struct sortable){symbols->addresses[i], symbols->names[i]};
	qsort_r(rows, symbols->count, sizeof *rows, compare, symbols->text);
	for (uint32_t i = 0; i < symbols->count; i++) {
		if (i && rows[i].address == rows[i - 1].address)
			continue;
		symbols->addresses[kept] = rows[i].address;
		symbols->names[kept++] = rows[i].name + 1;
	}
	symbols->count = kept;
	free(rows);
	return NULL;
}

const char *gs_kernel_symbols_read(int fd, struct gs_kernel_symbols *symbols)
{
	uint64_t at = 0;
	uint32_t skipped = 0;
	const char *reason;

	memset(symbols, 0, sizeof *symbols);
	reason = each_line(fd, 0, &at, &skipped, take_kernel_symbol, symbols);
	if (!reason && !symbols->count)
		reason = symbols->hidden ? "kptr_restrict" : "no kernel symbols";
	if (!reason)
		reason = sort_symbols(symbols);
	if (reason)
		gs_kernel_symbols_free(symbols);
	return reason;
}

void gs_kernel_symbols_free(struct gs_kernel_symbols *symbols)
{
	free(symbols->addresses);
	free(symbols->names);
	free(symbols->text);
	memset(symbols, 0, sizeof *symbols);
}

int64_t gs_kernel_symbols_find(const struct gs_kernel_symbols *symbols, uint64_t address)
{
	uint32_t low = 0, high = symbols->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (symbols->addresses[middle] <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return (int64_t)low - 1;
}

/* ---- perf maps ---- */

static const char *take_perf_row(void *context, const char *line, size_t length, uint64_t at)
{
	struct gs_perf_map *map = context;
	uint64_t start, size;
	size_t one = hexadecimal(line, length, &start), two;

	if (!one || one >= length || line[one] != ' ')
		goto bad;
	two = hexadecimal(line + one + 1, length - one - 1, &size);
	if (!two || one + two + 2 >= length || line[one + 1 + two] != ' ' || !size || start + size < start || at >> 39)
		goto bad;
	if (map->count == map->limit)
		return "perf map too large";
	if (map->count == map->capacity) {
		uint32_t capacity = map->capacity ? map->capacity * 2 : 1024;
		struct gs_perf_row *rows = realloc(map->rows, capacity * sizeof *rows);
		if (!rows)
			return "out of memory";
		map->rows = rows;
		map->capacity = capacity;
	}
	map->rows[map->count++] = (struct gs_perf_row){start, size, at + one + two + 2, length - one - two - 2};
	return NULL;
bad:
	map->bad++;
	return NULL;
}

const char *gs_perf_map_grow(int fd, struct gs_perf_map *map)
{
	return each_line(fd, 1, &map->consumed, &map->bad, take_perf_row, map);
}

void gs_perf_map_free(struct gs_perf_map *map)
{
	free(map->rows);
	memset(map, 0, sizeof *map);
}

void gs_perf_map_find(const struct gs_perf_map *map, const uint64_t *addresses, uint32_t n, int64_t *out)
{
	uint32_t left = n, visits = 0;

	for (uint32_t i = 0; i < n; i++)
		out[i] = -1;
	for (uint32_t row = map->count; row-- && left;) { /* from the newest, so that an address is settled once */
		const struct gs_perf_row *r = &map->rows[row];
		uint32_t low = 0, high = n;
		while (low < high) {
			uint32_t middle = low + (high - low) / 2;
			if (addresses[middle] < r->start)
				low = middle + 1;
			else
				high = middle;
		}
		for (; low < n && addresses[low] - r->start < r->size; low++) {
			if (visits++ > VISIT_BUDGET)
				return;
			if (out[low] >= 0)
				continue;
			out[low] = row;
			left--;
		}
	}
}
