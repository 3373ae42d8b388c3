/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <stdlib.h>
#include <string.h>

#define GRANULE 64 /* words: keeps the number of odd gaps down */

static void sweep(struct gs_words *w, uint64_t now_ns)
{
	uint32_t kept = 0;

	w->used = 0;
	for (uint32_t i = 0; i < w->count; i++) {
		if (w->runs[i].free_at && w->runs[i].free_at <= now_ns)
			continue;
		w->used += w->runs[i].length;
		w->runs[kept++] = w->runs[i];
	}
	w->count = kept;
}

uint32_t gs_words_take(struct gs_words *w, uint32_t length, uint64_t now_ns)
{
	uint32_t at = 0, i;

	if (!length || length > w->size - GRANULE)
		return UINT32_MAX;
	length = (length + GRANULE - 1) / GRANULE * GRANULE;
	sweep(w, now_ns);
	if (w->count == w->room) {
		struct gs_run *larger = realloc(w->runs, (w->room + 256) * sizeof *larger);
		if (!larger)
			return UINT32_MAX;
		w->runs = larger;
		w->room += 256;
	}
	for (i = 0; i < w->count && w->runs[i].start - at < length; i++)
		at = w->runs[i].start + w->runs[i].length;
	if (i == w->count && w->size - at < length)
		return UINT32_MAX;
	memmove(w->runs + i + 1, w->runs + i, (w->count - i) * sizeof *w->runs);
	w->runs[i] = (struct gs_run){ at, length, 0 };
	w->count++;
	w->used += length;
	return at;
}

void gs_words_give(struct gs_words *w, uint32_t start, uint64_t free_at)
{
	for (uint32_t i = 0; i < w->count; i++)
		if (w->runs[i].start == start)
			w->runs[i].free_at = free_at ? free_at : 1;
}

void gs_words_close(struct gs_words *w)
{
	free(w->runs);
	memset(w, 0, sizeof *w);
}
