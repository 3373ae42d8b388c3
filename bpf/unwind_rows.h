/* SPDX-License-Identifier: Apache-2.0 */
/* Unwind rows of one file, built from its .eh_frame and .debug_frame, before they are placed into the shared array. */
#ifndef GPUSTROBE_UNWIND_ROWS_H
#define GPUSTROBE_UNWIND_ROWS_H

#include "core.h"
#include "cfi.h"

struct gs_rows {
	uint64_t base;   /* file offset of the first page */
	uint32_t pages;  /* index has pages + 1 entries */
	uint32_t count;  /* of rows; the last ends what is covered */
	uint32_t n_rules;
	uint32_t *index; /* first row at or after base + 512 * i */
	uint32_t *rows;  /* low 16 bits of the file offset | rule << 16, rule is an index into rules */
	struct gs_rule *rules; /* distinct */
	struct gs_cfi_counts counts;
};

/* Builds all rows of the ELF file behind `fd` (borrowed, any file position). Returns NULL, or why there are none: "no unwind
 * information", "not an ELF file", "section too large" ...; then nothing needs freeing. Reads at most 512 MB of sections. */
GS_API const char *gs_rows_build(int fd, struct gs_rows *rows);
GS_API void gs_rows_free(struct gs_rows *rows);

/* The same for code in memory: rows by address in place of file offset, from several .eh_frame sections as linked. Functions that
 * do not lie in [low, high) are left out; of two at one address the first given counts. */
GS_API const char *gs_rows_build_in_memory(const struct gs_cfi_section *sections, uint32_t n, uint64_t low, uint64_t high,
					   struct gs_rows *rows);

/* The rule that holds at a file offset; cfa GS_CFA_NONE where nothing covers it. The kernel's lookup, for tests. */
GS_API struct gs_rule gs_rows_find(const struct gs_rows *rows, uint64_t file_offset);

#endif
