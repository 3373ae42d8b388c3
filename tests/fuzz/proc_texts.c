/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target of bpf/maps_text.c, bpf/listing.c, bpf/build_id.c and the stat parser of bpf/process_dir.c. With libFuzzer:
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -iquote bpf tests/fuzz/proc_texts.c bpf/maps_text.c bpf/listing.c \
 *     bpf/build_id.c bpf/process_dir.c
 * With -DSTANDALONE it brings its own mutations: PROGRAM SEED_FILE ROUNDS SEED; tests/test_bpf_fuzz.py runs that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "listing.h"
#include "process_dir.h"

static void check_rows(const struct gs_vma_list *list)
{
	static char path[GS_FILE_PATH_MAX];
	uint64_t last = 0;

	for (uint32_t i = 0; i < list->count; i++) {
		const struct gs_vma *v = &list->vmas[i];
		int length = gs_list_path(list, v, path);

		if (v->start < last || v->end <= v->start || (size_t)v->path + v->path_length > list->paths_used)
			abort();
		if (length >= 0 && (length >= GS_FILE_PATH_MAX || path[length]))
			abort();
		last = v->end;
	}
}

static void try_maps(const char *text, size_t size)
{
	struct gs_vma_list list = {.maps_fd = -1, .by_text = 1};

	if (!gs_parse_maps(text, size, &list))
		check_rows(&list);
	gs_list_free(&list);
}

/* The same text through a file, in the pieces that read() gives. */
static void try_file(int fd)
{
	struct gs_vma_list list = {.maps_fd = -1};
	char name[32];
	int no_query = 1;

	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	if (!gs_list_mappings(-1, name, &no_query, &list))
		check_rows(&list);
	gs_list_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *exact = malloc(size ? size : 1); /* no byte behind it, so reading one too far is seen */
	struct gs_stamp stamp;
	struct gs_build_id id;
	int fd = memfd_create("input", MFD_CLOEXEC);

	memcpy(exact, data, size);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	try_maps(exact, size);
	try_file(fd);
	gs_parse_stat(exact, size, &stamp);
	id = gs_read_build_id(fd);
	if (id.length > GS_BUILD_ID_MAX || (id.length > 0) != (id.reason == GS_BUILD_ID_found) || id.reason >= GS_BUILD_ID_REASON_COUNT)
		abort();
	close(fd);
	free(exact);
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

static const char words[] = "0123456789abcdef-: \n\\012()rwxpsS";

int main(int argc, char **argv)
{
	static uint8_t whole[1 << 18], data[1 << 18];
	FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
	size_t size = file ? fread(whole, 1, sizeof whole, file) : 0;

	if (!size)
		return 2;
	state = strtoull(argv[3], NULL, 10) * 2654435761u + 1;
	for (long round = strtol(argv[2], NULL, 10); round > 0; round--) {
		size_t length = pick(3) ? size : 1 + pick(size);

		memcpy(data, whole, length);
		for (uint64_t n = 1 + pick(12); n > 0; n--) {
			size_t at = pick(pick(2) ? length : length < 400 ? length : 400), run = 1 + pick(pick(8) ? 4 : 3000);

			for (size_t i = at; i < length && i < at + run; i++)
				data[i] = pick(2) ? (uint8_t)words[pick(sizeof words - 1)] : (uint8_t)pick(256);
		}
		LLVMFuzzerTestOneInput(data, length);
	}
	return 0;
}
#endif
