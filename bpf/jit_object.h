/* SPDX-License-Identifier: Apache-2.0 */
/* Code that a running program compiled, as it registered it through GDB's JIT interface (gdb/jit.h, "JIT Compilation Interface"
 * in GDB's manual): a linked list of ELF images in the program's memory. LLVM keeps it (XLA's libjax_common, numba's libllvmlite).
 *
 * All of it is the program's own memory, which may change while it is read or be hostile: bounded, checked, taken or left. */
#ifndef GPUSTROBE_JIT_OBJECT_H
#define GPUSTROBE_JIT_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "core.h"

#define GS_JIT_MAX_OBJECTS 8192 /* of one list */
#define GS_JIT_MAX_IMAGE (16u << 20)
#define GS_JIT_MAX_SYMBOLS 16384 /* of one object */
#define GS_JIT_NAME_MAX 1024

/* struct jit_descriptor */
struct gs_jit_descriptor {
	uint32_t version;
	uint32_t action;
	uint64_t relevant;
	uint64_t first;
};

/* struct jit_code_entry */
struct gs_jit_entry {
	uint64_t next;
	uint64_t previous;
	uint64_t image;
	uint64_t size;
};

struct gs_jit_symbol {
	uint64_t start, end; /* addresses */
	uint32_t name;       /* offset in names; NUL terminated */
};

struct gs_jit_object {
	uint64_t entry, image, size, mark; /* what tells it from another: mark is of the image's two ends */
	uint32_t number;                   /* never given twice */
	uint32_t n_symbols;
	struct gs_jit_symbol *symbols;
	char *names;
	uint32_t names_size;
	uint64_t low, high; /* around its executable sections */
	uint8_t *frames;    /* its .eh_frame as linked; NULL if it has none */
	size_t frames_size;
	uint64_t frames_vaddr;
};

/* How the walk of a list ended. */
enum gs_jit_list_end {
	GS_JIT_LIST_WHOLE,
	GS_JIT_LIST_BROKEN, /* an entry that cannot be read, or whose `previous` is another: it changed meanwhile, or is hostile */
	GS_JIT_LIST_CUT,    /* more entries than the bound */
	GS_JIT_LIST_NONE,   /* no descriptor there (yet) */
};

/* memory: descriptor of /proc/PID/mem. Entries with an image, newest first; *entries is malloc'd, NULL when there are none.
 * A loop cannot be followed twice: it would give one entry two predecessors. */
GS_API enum gs_jit_list_end gs_jit_read_list(int memory, uint64_t descriptor, struct gs_jit_object **objects, uint32_t *count);

/* Reads the image of an object with entry, image and size set. NULL, or why it is left out; then nothing needs freeing. */
GS_API const char *gs_jit_read_object(int memory, struct gs_jit_object *object);
GS_API void gs_jit_free_object(struct gs_jit_object *object);

int gs_jit_read_descriptor(int memory, uint64_t at, struct gs_jit_descriptor *out); /* 1, or 0 */

/* Where __jit_debug_descriptor lies, counted from the place that file offset 0 would have if the executable segment around
 * `file_offset` were longer; 0 if the file has none. Reads the string tables, in pieces. */
GS_API uint64_t gs_jit_find_descriptor(int fd, uint64_t file_offset);

#endif
