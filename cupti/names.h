/* SPDX-License-Identifier: Apache-2.0 */
/* Interning into the arena. Tables are private and fixed; ids and contents are the arena's (cupti/ring.h). */
#ifndef GPUSTROBE_NAMES_H
#define GPUSTROBE_NAMES_H

#include <stdatomic.h>

#include "produce.h"

#define GS_STRING_SLOTS 32768 /* powers of two; 4 MiB of arena hold fewer entries than three quarters of these */
#define GS_SHAPE_SLOTS 131072
#define GS_POINTER_SLOTS 1024

struct gs_pointer {
	_Atomic uintptr_t key; /* address of the text; 0 while it is written */
	_Atomic uint64_t value; /* epoch << 32 | string id */
};

struct gs_names {
	struct gs_ring *ring;
	atomic_flag busy; /* held by who adds to `strings` */
	_Atomic uint32_t epoch;
	struct gs_pointer pointers[GS_POINTER_SLOTS];
	struct {
		uint32_t hash, id;
	} strings[GS_STRING_SLOTS];
	uint32_t shapes[GS_SHAPE_SLOTS];
};

/* Maps the tables; NULL without memory. */
struct gs_names *gs_names_create(struct gs_ring *ring);

/* Id of a text; 0 if the arena is full. A new text needs a lock: patient (our own thread) waits for it, others try for about
 * a microsecond, then get 0 and count names_busy. */
uint32_t gs_string_id(struct gs_names *names, const char *text, int patient);

/* The same, remembered by address until the next gs_names_forget_pointers: a text that is freed and another one put in its
 * place is mistaken for at most so long. */
uint32_t gs_pointer_id(struct gs_names *names, const char *text, int patient);
void gs_names_forget_pointers(struct gs_names *names);

/* Id of a shape (entry header ignored); our thread only. Coarse from three quarters on, 0 when full; both are counted. */
uint32_t gs_shape_id(struct gs_names *names, const struct gs_shape *shape);

#endif
