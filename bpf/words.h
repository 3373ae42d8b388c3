/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of words inside one array: first fit, a run freed is used again only after its grace period. Not thread-safe. */
#ifndef GPUSTROBE_WORDS_H
#define GPUSTROBE_WORDS_H

#include <stdint.h>

struct gs_run {
	uint32_t start, length; /* words */
	uint64_t free_at;       /* ns; 0 = in use, else usable from then on */
};

struct gs_words {
	struct gs_run *runs; /* sorted by start, in use or waiting; what lies between them is free */
	uint32_t count, room, size;
	uint32_t used; /* words in runs, waiting ones included */
};

/* First word of a run of `length` words, or UINT32_MAX. */
uint32_t gs_words_take(struct gs_words *w, uint32_t length, uint64_t now_ns);
void gs_words_give(struct gs_words *w, uint32_t start, uint64_t free_at);
void gs_words_close(struct gs_words *w);

#endif
