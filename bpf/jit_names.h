/* SPDX-License-Identifier: Apache-2.0 */
/* Names of JIT code in an epoch: one for each frame in it, given to Python once. */
#ifndef GPUSTROBE_JIT_NAMES_H
#define GPUSTROBE_JIT_NAMES_H

#include <stdint.h>

struct gs_jit_function;
struct gs_jit_view;

/* A frame that was seen before anyone knew what it is. */
struct gs_jit_waiting {
	uint64_t start_boottime;
	uint64_t address;
	uint32_t tgid;
	uint32_t process_id;
};

struct gs_jit_names {
	uint8_t *records; /* not taken yet: struct gs_jit_record, each 8-byte aligned */
	uint32_t length, room;
	struct gs_jit_waiting *waiting;
	uint32_t n_waiting, room_waiting;
};

/* In gs_window.jits: this, then the name and the module. */
struct gs_jit_record {
	uint64_t address;
	uint32_t process_id;
	uint32_t object; /* gs_frame.detail */
	uint16_t name_length, module_length;
	uint32_t pad;
};

/* A frame new in this epoch. function: NULL if not known yet. */
void gs_jit_names_see(struct gs_jit_names *names, const struct gs_jit_waiting *frame, const struct gs_jit_function *function,
		      const struct gs_jit_view *view);
/* Names the frames that waited for this view. */
void gs_jit_names_answer(struct gs_jit_names *names, const struct gs_jit_view *view);
void gs_jit_names_free(struct gs_jit_names *names);

#endif
