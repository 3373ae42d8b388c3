/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target of bpf/elf_names.c and bpf/text_names.c. With libFuzzer:
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -iquote bpf tests/fuzz/elf_names.c bpf/elf_{names,symbols,index,facts,file}.c bpf/text_names.c -lz
 * With -DSTANDALONE it brings its own mutations: PROGRAM SEED_FILE ROUNDS SEED; tests/test_symbolizer_fuzz.py runs that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "elf_names.h"
#include "text_names.h"

static void try_elf(int fd, const uint8_t *data, size_t size)
{
	static char text[4 * GS_NAME_MAX];
	struct gs_elf_facts facts;
	struct gs_elf_name names[8], by_index[8];
	struct gs_elf_index index;
	uint64_t addresses[8] = {0, 1, 0x1000, 0x1008, 0x10ff, 0x2000, 1ull << 40, UINT64_MAX};

	if (size >= 32) { /* two addresses of the input's choice, sorted in between */
		memcpy(&addresses[6], data + size - 8, 8);
		if (addresses[6] < addresses[5])
			addresses[6] = addresses[5];
	}
	gs_elf_inspect(fd, &facts);
	if (gs_elf_names(fd, NULL, addresses, 8, names, text, sizeof text))
		return;
	for (int i = 0; i < 8; i++)
		if (names[i].low > addresses[i] || names[i].text + names[i].length > sizeof text)
			abort();
	if (gs_elf_index_build(fd, &index))
		return;
	if (!gs_elf_names(fd, &index, addresses, 8, by_index, text, sizeof text))
		for (int i = 0; i < 8; i++)
			if (by_index[i].start != names[i].start || by_index[i].how != names[i].how)
				abort();
	gs_elf_index_free(&index);
}

static void try_text(int fd)
{
	struct gs_kernel_symbols symbols;
	struct gs_perf_map map = {.limit = 1000};
	uint64_t addresses[3] = {0, 0x1000, UINT64_MAX};
	int64_t rows[3];

	lseek(fd, 0, SEEK_SET);
	if (!gs_kernel_symbols_read(fd, &symbols)) {
		int64_t at = gs_kernel_symbols_find(&symbols, 0x1000);
		if (at >= 0 && strlen(symbols.text + symbols.names[at]) > 5000)
			abort();
		gs_kernel_symbols_free(&symbols);
	}
	gs_perf_map_grow(fd, &map);
	gs_perf_map_find(&map, addresses, 3, rows);
	for (int i = 0; i < 3; i++)
		if (rows[i] >= (int64_t)map.count)
			abort();
	gs_perf_map_free(&map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("input", MFD_CLOEXEC);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	try_elf(fd, data, size);
	try_text(fd);
	close(fd);
	return 0;
}

#ifdef STANDALONE
static uint64_t state;

static uint64_t pick(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static const uint64_t edges[] = {0, 1, 0x7f, 0xff, 0xffff, 1ull << 31, 0xffffffff, 1ull << 63, UINT64_MAX, UINT64_MAX - 63};

int main(int argc, char **argv)
{
	static uint8_t whole[1 << 20], data[1 << 20];
	FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
	size_t size = file ? fread(whole, 1, sizeof whole, file) : 0;

	if (!size)
		return 2;
	state = strtoull(argv[3], NULL, 10) * 2654435761u + 1;
	for (long round = strtol(argv[2], NULL, 10); round > 0; round--) {
		size_t length = pick(3) ? size : 1 + pick(size);
		memcpy(data, whole, length);
		for (uint64_t n = 1 + pick(12); n > 0; n--) {
			size_t tail = length < 400 ? length : 400;
			size_t at = pick(3) == 0 ? pick(length < 120 ? length : 120) : pick(2) ? length - 1 - pick(tail) : pick(length);
			uint64_t value = pick(2) ? edges[pick(sizeof edges / sizeof *edges)] : pick(2 * length);
			size_t width = (size_t)1 << pick(4);
			memcpy(data + at, &value, width < length - at ? width : length - at);
		}
		LLVMFuzzerTestOneInput(data, length);
	}
	return 0;
}
#endif
