/* SPDX-License-Identifier: Apache-2.0 */
/* Names of functions in an ELF file: one pass over .symtab and .dynsym for a sorted batch of addresses.
 *
 * Read by pread in 96 KB pieces, never mapped: a file that shrinks is a short read, and resident memory does not grow with
 * the symbol table. */
#ifndef GPUSTROBE_ELF_NAMES_H
#define GPUSTROBE_ELF_NAMES_H

#include <stdint.h>

#include "core.h"

#define GS_ELF_SEGMENTS 16
#define GS_NAME_MAX 16383 /* longest name read; libjax_common's longest is 9,606 bytes */

struct gs_elf_segment {
	uint64_t file_offset, file_size, vaddr, memory_size;
	uint32_t flags; /* PF_X ... */
	uint32_t pad;
};

/* What a symbolizer wants to know before it reads symbols. */
struct gs_elf_facts {
	uint64_t symbols;         /* entries of .symtab */
	uint64_t dynamic_symbols; /* entries of .dynsym */
	uint64_t debug_bytes;     /* .debug_* as stored; 0 = no .debug_info */
	uint64_t minidebug_offset, minidebug_size; /* .gnu_debugdata, xz */
	uint32_t machine;
	uint32_t n_segments; /* PT_LOAD, at most GS_ELF_SEGMENTS: those past it, if any, are counted in lost_segments */
	uint32_t lost_segments;
	uint32_t debug_link_crc;
	uint32_t build_id_length;
	uint8_t build_id[32];
	char debug_link[256]; /* file name in .gnu_debuglink; "" = none */
	struct gs_elf_segment segments[GS_ELF_SEGMENTS];
};

enum gs_elf_name_how {
	GS_NAME_NONE,    /* no symbol here; [low, high) is the gap */
	GS_NAME_SIZED,   /* inside a symbol that states its size */
	GS_NAME_NEAREST, /* after a symbol without a size (assembly), in its section */
	GS_NAME_NO_ROOM, /* the text buffer was full: ask again */
};

/* Every address in [low, high) has this very answer. */
struct gs_elf_name {
	uint64_t start; /* of the function */
	uint64_t low, high;
	uint32_t text; /* offset in the text buffer */
	uint32_t length;
	uint32_t how; /* enum gs_elf_name_how */
	uint32_t pad;
};

/* Where in its tables a file's functions stand, sorted by start: 12 bytes each, so 9 MB for libjax's 742 k. Worth it for a
 * large table that is asked again and again: a pass over libjax takes 6 ms, a lookup of 10 addresses by index 0.06. */
struct gs_elf_index_row {
	uint32_t start;  /* from base */
	uint32_t reach;  /* furthest end of this row and all before it, from base, saturated */
	uint32_t number; /* of the symbol */
};
#define GS_INDEX_DYNAMIC (1u << 31) /* in `number`: of .dynsym */

struct gs_elf_index {
	struct gs_elf_index_row *rows;
	uint64_t base;
	uint32_t count;
	uint32_t pad;
	int64_t size, mtime; /* of the file when it was made; an index of a file that changed is refused */
};

/* These return NULL, or the reason why not. */
GS_API const char *gs_elf_inspect(int fd, struct gs_elf_facts *facts);

/* addresses: virtual addresses of the file, ascending. text: names, not terminated, of the caller's size.
 * index: NULL for a pass over the tables; else only the symbols around each address are read. The answers are the same. */
GS_API const char *gs_elf_names(int fd, const struct gs_elf_index *index, const uint64_t *addresses, uint32_t n,
				struct gs_elf_name *out, char *text, uint32_t text_size);

GS_API const char *gs_elf_index_build(int fd, struct gs_elf_index *index);
GS_API void gs_elf_index_free(struct gs_elf_index *index);

#endif
