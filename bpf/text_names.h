/* SPDX-License-Identifier: Apache-2.0 */
/* Names that the kernel and JIT compilers publish as text: /proc/kallsyms and /tmp/perf-PID.map. */
#ifndef GPUSTROBE_TEXT_NAMES_H
#define GPUSTROBE_TEXT_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"

/* Functions of the kernel, sorted, one per address. 122 k symbols of a 6.18 kernel: 4.6 MB, where Python's objects take 40. */
struct gs_kernel_symbols {
	uint64_t *addresses;
	uint32_t *names; /* offsets in text */
	char *text;      /* NAME or NAME\tMODULE, NUL terminated */
	uint32_t count, capacity;
	uint32_t text_used, text_capacity;
	uint32_t hidden; /* lines whose address is zero: kptr_restrict, or no CAP_SYSLOG */
};

/* NULL or the reason. Lines are ADDRESS TYPE NAME[\t[MODULE]]. */
GS_API const char *gs_kernel_symbols_read(int fd, struct gs_kernel_symbols *symbols);
GS_API void gs_kernel_symbols_free(struct gs_kernel_symbols *symbols);
/* Index of the last symbol at or before the address; -1 if there is none. */
GS_API int64_t gs_kernel_symbols_find(const struct gs_kernel_symbols *symbols, uint64_t address);

struct gs_perf_row {
	uint64_t start, size;
	uint64_t name_at : 40; /* file offset */
	uint64_t name_length : 24;
};

/* A perf map: lines START SIZE NAME, hexadecimal, appended as code is compiled; a later line takes over from an earlier one. */
struct gs_perf_map {
	struct gs_perf_row *rows;
	uint32_t count, capacity, limit;
	uint32_t bad; /* lines that are no entry */
	uint64_t consumed; /* bytes of whole lines read so far */
};

/* Reads what was appended since. NULL or the reason. */
GS_API const char *gs_perf_map_grow(int fd, struct gs_perf_map *map);
GS_API void gs_perf_map_free(struct gs_perf_map *map);
/* out[i]: index of the last row that contains addresses[i] (ascending), -1 if none does. */
GS_API void gs_perf_map_find(const struct gs_perf_map *map, const uint64_t *addresses, uint32_t n, int64_t *out);

#endif
