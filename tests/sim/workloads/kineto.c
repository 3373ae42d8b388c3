// SPDX-License-Identifier: Apache-2.0
#include "kineto.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cupti.h>

#define BUFFER (1 << 20)

struct event {
	uint32_t kind, correlation;
	uint64_t start, end, bytes;
	const char *name;
};
static struct event *events;
static size_t n_events, room;
static void *library;
static int recording, gave_up;
static CUpti_SubscriberHandle subscriber;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
					   CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_OVERHEAD};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

#define CUPTI(name) ((__typeof__(&name))dlsym(library, #name))

static void requested(uint8_t **buffer, size_t *size, size_t *records)
{
	*size = BUFFER;
	*records = 0;
	if (posix_memalign((void **)buffer, 8, BUFFER))
		*buffer = NULL;
}

static void keep(struct event event)
{
	if (n_events == room) {
		room = room ? 2 * room : 4096;
		events = realloc(events, room * sizeof(*events));
	}
	events[n_events++] = event;
}

static void read_record(const CUpti_Activity *record)
{
	const CUpti_ActivityKernel4 *kernel = (const void *)record;
	const CUpti_ActivityMemcpy5 *copy = (const void *)record;
	const CUpti_ActivityMemset4 *set = (const void *)record;
	const CUpti_ActivityAPI *api = (const void *)record;
	switch ((int)record->kind) {
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
		keep((struct event){record->kind, kernel->correlationId, kernel->start, kernel->end, 0, kernel->name});
		break;
	case CUPTI_ACTIVITY_KIND_MEMCPY:
		keep((struct event){record->kind, copy->correlationId, copy->start, copy->end, copy->bytes, "memcpy"});
		break;
	case CUPTI_ACTIVITY_KIND_MEMSET:
		keep((struct event){record->kind, set->correlationId, set->start, set->end, set->bytes, "memset"});
		break;
	case CUPTI_ACTIVITY_KIND_RUNTIME:
		keep((struct event){record->kind, api->correlationId, api->start, api->end, api->cbid, "runtime"});
		break;
	}
}

static void completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	CUpti_Activity *record = NULL;
	(void)context, (void)stream, (void)size;
	pthread_mutex_lock(&lock);
	while (CUPTI(cuptiActivityGetNextRecord)(buffer, valid, &record) == CUPTI_SUCCESS)
		read_record(record);
	pthread_mutex_unlock(&lock);
	free(buffer);
}

static void called(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *more)
{
	(void)data, (void)domain, (void)id, (void)more;
}

int kineto_start(const char *path, int old)
{
	library = dlopen(path, RTLD_NOW);
	if (!library || recording || gave_up)
		return -1;
	if (old) {
		CUptiResult result = CUPTI(cuptiSubscribe)(&subscriber, called, NULL);
		if (result) {
			gave_up = 1;
			return result;
		}
		CUPTI(cuptiEnableCallback)(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
	}
	n_events = 0;
	CUPTI(cuptiActivityRegisterCallbacks)(requested, completed);
	for (size_t i = 0; i < N_KINDS; i++) {
		CUptiResult result = CUPTI(cuptiActivityEnable)(kinds[i]);
		if (result)
			return result;
	}
	recording = 1;
	return 0;
}

static int by_start(const void *left, const void *right)
{
	const struct event *a = left, *b = right;
	return a->start < b->start ? -1 : a->start > b->start;
}

int kineto_stop(const char *path)
{
	FILE *file = recording ? fopen(path, "w") : NULL;
	if (!file)
		return -1;
	for (size_t i = 0; i < N_KINDS; i++)
		CUPTI(cuptiActivityDisable)(kinds[i]);
	CUPTI(cuptiActivityFlushAll)(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	if (subscriber)
		CUPTI(cuptiUnsubscribe)(subscriber);
	subscriber = NULL;
	recording = 0;
	pthread_mutex_lock(&lock);
	qsort(events, n_events, sizeof(*events), by_start);
	for (size_t i = 0; i < n_events; i++)
		fprintf(file, "%u %u %lu %lu %lu %s\n", events[i].kind, events[i].correlation, events[i].start, events[i].end,
			events[i].bytes, events[i].name);
	pthread_mutex_unlock(&lock);
	fclose(file);
	return n_events;
}
