/* SPDX-License-Identifier: Apache-2.0 */
/* The executable mappings of one process, by PROCMAP_QUERY where the kernel has it (6.11), else from the text of maps. */
#ifndef GPUSTROBE_LISTING_H
#define GPUSTROBE_LISTING_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"
#include "files.h"

#define GS_LISTING_MAX 65536 /* vm.max_map_count is 65530 unless raised */

enum gs_vma_flag { GS_VMA_WRITABLE = 1, GS_VMA_VDSO = 2 };

struct gs_vma {
	uint64_t start;
	uint64_t end;
	uint64_t file_offset; /* of start */
	uint64_t inode;       /* 0 = no file */
	uint32_t device;      /* major << 20 | minor */
	uint32_t flags;       /* enum gs_vma_flag */
	uint32_t path;        /* text mode: where in `paths` its path begins */
	uint32_t path_length;
};

/* Reused from listing to listing: its memory grows to the largest process. */
struct gs_vma_list {
	struct gs_vma *vmas; /* sorted by start */
	uint32_t count;
	uint32_t room;
	char *paths; /* text mode only */
	size_t paths_used;
	size_t paths_room;
	uint32_t bad_lines;
	int by_text;
	int maps_fd; /* query mode: open until gs_list_done, paths are asked for one by one; else -1 */
};

/* 0 or an errno. `name` is "maps" or "task/TID/maps" below the directory `process`. *no_query is set once the kernel says
 * ENOTTY, and honoured from then on. An empty list is no error: no user memory (kernel thread, zombie). */
int gs_list_mappings(int process, const char *name, int *no_query, struct gs_vma_list *list);

/* The path of one mapping, as the kernel shows it, newlines restored: its length, or -1. `out` gets a NUL too. */
int gs_list_path(const struct gs_vma_list *list, const struct gs_vma *vma, char out[GS_FILE_PATH_MAX]);

/* The build id the kernel itself reads for a mapping; length 0 where it cannot. */
struct gs_build_id gs_list_build_id(const struct gs_vma_list *list, const struct gs_vma *vma);

void gs_list_done(struct gs_vma_list *list); /* closes maps_fd, keeps the memory */
void gs_list_free(struct gs_vma_list *list);

/* One line of maps without its newline: 1 = executable user mapping (vma filled, path points into line, still escaped),
 * 0 = another mapping, -1 = not a line of maps. */
GS_API int gs_parse_maps_line(const char *line, size_t length, struct gs_vma *vma, const char **path, size_t *path_length);

/* Parses a whole text of maps; for tests and fuzzing. */
GS_API int gs_parse_maps(const char *text, size_t length, struct gs_vma_list *list);

#endif
