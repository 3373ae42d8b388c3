/* SPDX-License-Identifier: Apache-2.0 */
/* The least of a libcuda.so.1 (-DFAKE_CUDA) and a libcupti.so (-DFAKE_CUPTI) that tests of cupti/ need, where no part of
 * tests/sim is wanted: each launch becomes one kernel record, handed over on flush. Knobs are exported variables. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef FAKE_CUDA
static int initialized;

int cuInit(unsigned flags)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	(void)flags;
	if (initialized++)
		return 0;
	void *handle = path ? dlopen(path, RTLD_NOW) : NULL;
	int (*inject)(void) = handle ? (int (*)(void))dlsym(handle, "InitializeInjection") : NULL;
	if (path && !inject)
		fprintf(stderr, "%s\n", dlerror());
	if (inject)
		inject();
	return 0;
}

int cuDeviceGetCount(int *count)
{
	*count = 2;
	return initialized ? 0 : 3;
}

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return 0;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	for (int i = 0; i < 16; i++)
		uuid[i] = (unsigned char)(16 * (device + 1) + i);
	return 0;
}

int cuDeviceGetName(char *name, int length, int device)
{
	snprintf(name, (size_t)length, "Fake GPU %d", device);
	return 0;
}
#endif

#ifdef FAKE_CUPTI
typedef void (*callback)(void *, int, uint32_t, const void *);
typedef void (*request_fn)(uint8_t **, size_t *, size_t *);
typedef void (*complete_fn)(void *, uint32_t, uint8_t *, size_t, size_t);

uint32_t fake_version = 130001;
int fake_subscribe_result, fake_enable_result;
uint64_t fake_calls; /* CUPTI calls of any kind, timestamps left out */
uint64_t fake_enables;

static callback subscriber;
static void *subscriber_data;
static request_fn request;
static complete_fn complete;
static int enabled[128];
static uint32_t correlation;
static uint8_t *buffer;
static size_t buffer_size, used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_unix(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define CALL() __atomic_fetch_add(&fake_calls, 1, __ATOMIC_RELAXED)

int cuptiGetVersion(uint32_t *version)
{
	const char *wish = getenv("FAKE_CUPTI_VERSION");
	CALL();
	*version = wish ? (uint32_t)atoi(wish) : fake_version;
	return 0;
}

int cuptiSubscribe(void **handle, callback function, void *data)
{
	const char *wish = getenv("FAKE_CUPTI_SUBSCRIBE");
	CALL();
	if (wish)
		return atoi(wish);
	if (subscriber)
		return 39;
	*handle = &subscriber;
	subscriber_data = data;
	subscriber = function;
	return 0;
}

int cuptiUnsubscribe(void *handle)
{
	CALL();
	(void)handle;
	subscriber = NULL;
	return 0;
}

int cuptiEnableCallback(uint32_t on, void *handle, int domain, uint32_t cbid)
{
	(void)on, (void)handle, (void)domain, (void)cbid;
	return 0;
}

int cuptiGetCallbackName(int domain, uint32_t cbid, const char **name)
{
	static const char *const runtime[] = {"", "cudaMalloc_v3020", "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020"};
	static const char *const driver[] = {"", "cuInit", "cuLaunchKernel"};
	if (domain == 2 && cbid < 4)
		*name = runtime[cbid];
	else if (domain == 1 && cbid < 3)
		*name = driver[cbid];
	else
		return 1;
	return 0;
}

int cuptiActivityRegisterCallbacks(request_fn r, complete_fn c)
{
	CALL();
	request = r;
	complete = c;
	return 0;
}

int cuptiActivityEnable(int kind)
{
	const char *wish = getenv("FAKE_CUPTI_ENABLE");
	CALL();
	if (wish)
		return atoi(wish);
	enabled[kind] = 1;
	fake_enables++;
	return 0;
}

int cuptiActivityDisable(int kind)
{
	CALL();
	enabled[kind] = 0;
	return 0;
}

static void hand_over(void)
{
	if (!buffer)
		return;
	complete(NULL, 0, buffer, buffer_size, used);
	buffer = NULL;
}

int cuptiActivityFlushAll(uint32_t flag)
{
	CALL();
	(void)flag;
	pthread_mutex_lock(&lock);
	hand_over();
	pthread_mutex_unlock(&lock);
	return 0;
}

#define RECORD 216

int cuptiActivityGetNextRecord(uint8_t *at, size_t valid, void **record)
{
	uint8_t *next = *record ? (uint8_t *)*record + RECORD : at;
	if (next + RECORD > at + valid)
		return 12;
	*record = next;
	return 0;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
	(void)context, (void)stream;
	*dropped = 0;
	return 0;
}

int cuptiActivitySetAttribute(int attribute, size_t *size, void *value)
{
	(void)attribute, (void)size, (void)value;
	return 0;
}

int cuptiGetTimestamp(uint64_t *stamp)
{
	*stamp = now_unix();
	return 0;
}

static void put(size_t offset, const void *value, size_t size)
{
	memcpy(buffer + used + offset, value, size);
}

static void add_record(const char *name, uint32_t id, uint32_t ns, uint32_t grid)
{
	uint32_t kind = 10, device = 1, context = 1, stream = 7, block[3] = {256, 1, 1}, grids[3] = {grid, 1, 1};
	uint16_t registers = 32;
	uint64_t end = now_unix(), start = end - ns;
	if (buffer && used + RECORD > buffer_size)
		hand_over();
	if (!buffer) {
		size_t most = 0;
		request(&buffer, &buffer_size, &most);
		used = 0;
	}
	put(0, &kind, 4);
	put(6, &registers, 2);
	put(16, &start, 8);
	put(24, &end, 8);
	put(40, &device, 4);
	put(44, &context, 4);
	put(48, &stream, 4);
	put(52, grids, 12);
	put(64, block, 12);
	put(92, &id, 4);
	put(104, &name, 8);
	used += RECORD;
}

static void call(int site, int domain, uint32_t cbid, uint32_t id, const char *name)
{
	struct {
		uint32_t site;
		const char *function;
		const void *params;
		void *result;
		const char *symbol;
		void *context;
		uint32_t context_uid;
		uint64_t *data;
		uint32_t correlation;
	} data = {.site = (uint32_t)site, .symbol = name, .context_uid = 1, .correlation = id};
	callback function = subscriber;
	if (function)
		function(subscriber_data, domain, cbid, &data);
}

/* One runtime launch with a driver launch inside it. */
void fake_launch(const char *name, uint32_t ns, uint32_t grid)
{
	uint32_t id = __atomic_add_fetch(&correlation, 1, __ATOMIC_RELAXED);
	call(0, 2, 2, id, name);
	call(0, 1, 2, id, name);
	if (enabled[10]) {
		pthread_mutex_lock(&lock);
		add_record(name, id, ns, grid);
		pthread_mutex_unlock(&lock);
	}
	call(1, 1, 2, id, name);
	call(1, 2, 2, id, name);
}
#endif
