/* SPDX-License-Identifier: Apache-2.0 */
/* A code object of another process, read as soon as a frame of it is seen for the first time: name, file, line table. */
#ifndef GPUSTROBE_PYTHON_CODE_H
#define GPUSTROBE_PYTHON_CODE_H

#include "python_runtime.h"

#define GS_PYTHON_NAME_MAX 1024  /* bytes of UTF-8; longer names are cut */
#define GS_PYTHON_LINES_MAX 65536 /* bytes of a line table; a longer one is left out, then only the first line is known */

enum gs_python_code_state {
	GS_CODE_READ,
	GS_CODE_UNREADABLE, /* the process is gone or its memory is not readable */
	GS_CODE_REPLACED,   /* `check` differs: the code object was freed and its memory holds another */
};

struct gs_python_code {
	uint64_t code;
	uint32_t check;
	uint32_t state; /* enum gs_python_code_state */
	uint32_t first_line;
	uint16_t version; /* 0x30b for 3.11 */
	uint16_t name_length, file_length; /* bytes of UTF-8 in text */
	uint16_t pad;
	uint32_t lines_length;
	uint8_t text[2 * GS_PYTHON_NAME_MAX + GS_PYTHON_LINES_MAX]; /* name, file, line table */
};

/* `check` is the low half of the second word of the frame. */
GS_API void gs_python_read_code(uint32_t pid, const struct gs_python *p, uint64_t code, uint32_t check, struct gs_python_code *out);

#endif
