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

struct gs_codes {
	struct gs_code_key *keys;
	uint32_t n_keys, room_keys;
	struct gs_index index;
	uint8_t *records; /* not taken yet: struct gs_code_record, each 8-byte aligned */
	uint32_t length, room;
	struct gs_python_code scratch; /* 68 KB */
};

/* In gs_window.codes: this, then `length` bytes of struct gs_python_code without the unused end of its text. */
struct gs_code_record {
	uint32_t process_id;
	uint32_t length;
};

/* p: what is known of the process's interpreter, NULL if it is gone. Does nothing for a code object known already. */
void gs_codes_see(struct gs_codes *codes, uint32_t process_id, uint32_t tgid, const struct gs_python *p, uint64_t code, uint32_t check);
void gs_codes_free(struct gs_codes *codes);

#endif
