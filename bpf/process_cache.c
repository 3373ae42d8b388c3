// SPDX-License-Identifier: Apache-2.0
#include "process_cache.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct gs_cached **bucket(const struct gs_cache *cache, uint32_t tgid)
{
	return &cache->buckets[(tgid * 2654435769u >> 8) & cache->mask];
}

int gs_cache_open(struct gs_cache *cache, uint32_t max_processes)
{
	uint32_t size = 64;

	memset(cache, 0, sizeof(*cache));
	while (size < max_processes)
		size *= 2;
	cache->buckets = calloc(size, sizeof(struct gs_cached *));
	cache->mask = size - 1;
	return cache->buckets ? 0 : ENOMEM;
}

void gs_cache_close(struct gs_cache *cache)
{
	while (cache->oldest)
		gs_cache_remove(cache, cache->oldest);
	free(cache->buckets);
	memset(cache, 0, sizeof(*cache));
}

struct gs_cached *gs_cache_find(const struct gs_cache *cache, uint32_t tgid, uint64_t start_boottime)
{
	struct gs_cached *p = *bucket(cache, tgid);

	while (p && (p->tgid != tgid || p->start_boottime != start_boottime))
		p = p->next;
	return p;
}

struct gs_cached *gs_cache_other(const struct gs_cache *cache, const struct gs_cached *p, const struct gs_cached *after)
{
	struct gs_cached *other = after ? after->next : *bucket(cache, p->tgid);

	while (other && (other->tgid != p->tgid || other == p))
		other = other->next;
	return other;
}

static void unlink_age(struct gs_cache *cache, struct gs_cached *p)
{
	*(p->older ? &p->older->newer : &cache->oldest) = p->newer;
	*(p->newer ? &p->newer->older : &cache->newest) = p->older;
}

static void link_newest(struct gs_cache *cache, struct gs_cached *p)
{
	p->older = cache->newest;
	p->newer = NULL;
	*(cache->newest ? &cache->newest->newer : &cache->oldest) = p;
	cache->newest = p;
}

struct gs_cached *gs_cache_add(struct gs_cache *cache, uint32_t tgid, uint64_t start_boottime)
{
	struct gs_cached *p = calloc(1, sizeof(*p)), **head = bucket(cache, tgid);

	if (!p)
		return NULL;
	p->tgid = tgid;
	p->start_boottime = start_boottime;
	p->next = *head;
	*head = p;
	link_newest(cache, p);
	cache->count++;
	return p;
}

void gs_cache_touch(struct gs_cache *cache, struct gs_cached *p)
{
	if (cache->newest == p)
		return;
	unlink_age(cache, p);
	link_newest(cache, p);
}

void gs_cache_set_rows(struct gs_cache *cache, struct gs_cached *p, struct gs_row *rows, uint32_t count)
{
	cache->bytes += ((uint64_t)count - p->count) * sizeof(*rows);
	free(p->rows);
	p->rows = rows;
	p->count = count;
}

void gs_cache_set_details(struct gs_cache *cache, struct gs_cached *p, const struct gs_process_details *details)
{
	uint32_t bytes = offsetof(struct gs_process_details, text);
	struct gs_process_details *copy;

	for (int i = 0; i < GS_DETAIL_COUNT; i++)
		bytes += details->length[i];
	copy = malloc(bytes);
	if (!copy)
		return;
	memcpy(copy, details, bytes);
	free(p->details);
	p->details = copy;
	cache->bytes += (uint64_t)bytes - p->details_bytes;
	p->details_bytes = bytes;
}

void gs_cache_remove(struct gs_cache *cache, struct gs_cached *p)
{
	struct gs_cached **link = bucket(cache, p->tgid);

	while (*link != p)
		link = &(*link)->next;
	*link = p->next;
	unlink_age(cache, p);
	gs_cache_set_rows(cache, p, NULL, 0);
	cache->bytes -= p->details_bytes;
	cache->count--;
	free(p->details);
	free(p->python);
	free(p);
}
