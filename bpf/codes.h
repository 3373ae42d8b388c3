/* SPDX-License-Identifier: Apache-2.0 */
/* Python code objects of an epoch: each read once, when its first frame is seen, because it may be gone a moment later. */
#ifndef GPUSTROBE_CODES_H
#define GPUSTROBE_CODES_H

#include "index.h"
#include "python_code.h"

struct gs_code_key {
	uint64_t code;
	uint32_t process_id;
	uint32_t check;
};

/* Of the code object with the same number as its key. */
struct gs_code_lines {
	uint32_t first_line, start, length; /* in gs_codes.lines; length 0 = not read */
	uint16_t version, pad;
};

/* An instruction seen, and the frame it became: those of one line are one frame. */
struct gs_code_place {
	uint64_t code;
	uint64_t detail; /* instruction << 32 | check */
	uint32_t process_id;
	uint32_t frame;
};

struct gs_codes {
	struct gs_code_key *keys;
	struct gs_code_lines *tables;
	uint32_t n_keys, room_keys, room_tables;
	struct gs_index index;
	uint8_t *lines; /* line tables of all code objects, one after the other */
	uint32_t lines_length, room_lines;
	struct gs_code_place *places;
	uint32_t n_places, room_places;
	struct gs_index place_index;
	uint8_t *records; /* not taken yet: struct gs_code_record, each 8-byte aligned */
	uint32_t length, room;
	struct gs_python_code scratch; /* 68 KB */
};

/* In gs_window.codes: this, then `length` bytes of struct gs_python_code: up to the end of its file name. */
struct gs_code_record {
	uint32_t process_id;
	uint32_t length;
};

/* The frame that an instruction became, GS_NO_ID if it was not seen yet. */
uint32_t gs_codes_frame(const struct gs_codes *codes, uint32_t process_id, uint64_t code, uint64_t detail);

/* The line of an instruction; reads the code object the first time. p: what is known of the process's interpreter, NULL if it is
 * gone. 0 where the code object could not be read or names no line. */
uint32_t gs_codes_line(struct gs_codes *codes, uint32_t process_id, uint32_t tgid, const struct gs_python *p, uint64_t code,
		       uint64_t detail);
void gs_codes_remember(struct gs_codes *codes, uint32_t process_id, uint64_t code, uint64_t detail, uint32_t frame);
uint64_t gs_codes_bytes(const struct gs_codes *codes);
void gs_codes_free(struct gs_codes *codes);

#endif
