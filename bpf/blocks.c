// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int grow(void **array, uint32_t *room, uint32_t count, size_t size)
{
	uint32_t wanted = *room ? *room * 2 : 64;
	void *grown = count < *room ? *array : realloc(*array, wanted * size);

	if (!grown)
		return ENOMEM;
	if (count >= *room)
		*room = wanted;
	*array = grown;
	return 0;
}

/* Puts an extent back, joined with its neighbours. Out of memory it is lost until the next start: rows only. */
static void give(struct gs_blocks *b, struct gs_extent e)
{
	struct gs_extent *at;
	uint32_t i = 0;

	if (!e.count || grow((void **)&b->free, &b->free_room, b->free_count, sizeof(*b->free)))
		return;
	b->free_rows += e.count;
	while (i < b->free_count && b->free[i].first < e.first)
		i++;
	at = &b->free[i];
	if (i && at[-1].first + at[-1].count == e.first) {
		at--;
		at->count += e.count;
		i--;
	} else {
		memmove(at + 1, at, (b->free_count - i) * sizeof(*at));
		*at = e;
		b->free_count++;
	}
	if (i + 1 < b->free_count && at->first + at->count == at[1].first) {
		at->count += at[1].count;
		memmove(at + 1, at + 2, (b->free_count - i - 2) * sizeof(*at));
		b->free_count--;
	}
}

int gs_blocks_open(struct gs_blocks *b, int procs_fd, int mappings_fd, uint32_t total)
{
	void *mapped = MAP_FAILED;

	*b = (struct gs_blocks){.procs_fd = procs_fd, .mappings_fd = mappings_fd, .total = total};
	if (mappings_fd >= 0)
		mapped = mmap(NULL, total * sizeof(struct gs_mapping), PROT_READ | PROT_WRITE, MAP_SHARED, mappings_fd, 0);
	b->mapped = mapped == MAP_FAILED ? NULL : mapped;
	give(b, (struct gs_extent){0, total});
	return b->free_rows == total ? 0 : ENOMEM;
}

void gs_blocks_close(struct gs_blocks *b)
{
	if (b->mapped)
		munmap(b->mapped, b->total * sizeof(struct gs_mapping));
	free(b->free);
	free(b->retired);
	memset(b, 0, sizeof(*b));
}

uint32_t gs_blocks_take(struct gs_blocks *b, uint32_t count)
{
	struct gs_extent *best = NULL;
	uint32_t first;

	if (!count)
		return GS_BLOCKS_NONE;
	for (uint32_t i = 0; i < b->free_count; i++) {
		struct gs_extent *e = &b->free[i];

		if (e->count >= count && (!best || e->count < best->count))
			best = e;
	}
	if (!best)
		return GS_BLOCKS_NONE;
	first = best->first;
	best->first += count;
	best->count -= count;
	b->free_rows -= count;
	if (!best->count) {
		memmove(best, best + 1, (char *)(b->free + b->free_count) - (char *)(best + 1));
		b->free_count--;
	}
	return first;
}

int gs_blocks_write(struct gs_blocks *b, uint32_t first, const struct gs_mapping *from, uint32_t count)
{
	if (b->mapped) {
		memcpy(b->mapped + first, from, count * sizeof(*from));
		__atomic_thread_fence(__ATOMIC_RELEASE);
		return 0;
	}
	for (uint32_t i = 0; b->mappings_fd >= 0 && i < count; i++) {
		uint32_t key = first + i;

		if (bpf_map_update_elem(b->mappings_fd, &key, &from[i], BPF_ANY))
			return errno;
	}
	return 0;
}

void gs_blocks_retire(struct gs_blocks *b, uint32_t first, uint32_t count, uint64_t now_ns)
{
	if (!count || grow((void **)&b->retired, &b->retired_room, b->retired_count, sizeof(*b->retired)))
		return;
	b->retired[b->retired_count++] = (struct gs_retired){{first, count}, now_ns + GS_BLOCKS_GRACE_NS};
}

void gs_blocks_reap(struct gs_blocks *b, uint64_t now_ns)
{
	uint32_t done = 0;

	while (done < b->retired_count && b->retired[done].free_at <= now_ns)
		give(b, b->retired[done++].extent);
	if (!done)
		return;
	b->retired_count -= done;
	memmove(b->retired, b->retired + done, b->retired_count * sizeof(*b->retired));
}

int gs_blocks_publish(struct gs_blocks *b, uint32_t tgid, const struct gs_process *process)
{
	if (b->procs_fd >= 0 && bpf_map_update_elem(b->procs_fd, &tgid, process, BPF_ANY))
		return errno;
	return 0;
}

void gs_blocks_unpublish(struct gs_blocks *b, uint32_t tgid)
{
	if (b->procs_fd >= 0)
		bpf_map_delete_elem(b->procs_fd, &tgid);
}
