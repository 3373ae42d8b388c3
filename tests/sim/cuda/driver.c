// SPDX-License-Identifier: Apache-2.0
/* The simulated libcuda.so.1: start and injection, devices, contexts, streams, memory, modules. Launches and copies are in launch.c. */
#include "driver.h"
#include "simulated.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static int slots[GS_SIM_MAX_DEVICES], n_devices;
static struct gs_sim_context *primaries[GS_SIM_MAX_DEVICES];
static __thread struct gs_sim_context *current, *stacked[16];
static __thread int n_stacked;

/* ---- start ---- */

static void see_device(int slot)
{
	for (int i = 0; i < n_devices; i++)
		if (slots[i] == slot)
			return;
	slots[n_devices++] = slot;
}

/* CUDA_VISIBLE_DEVICES: indices or UUIDs (a prefix is enough); the list ends at the first that is neither. */
static void choose_devices(struct gs_sim_node *node)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int total = node->n_devices < GS_SIM_MAX_DEVICES ? node->n_devices : GS_SIM_MAX_DEVICES;
	n_devices = 0;
	if (!visible)
		for (int i = 0; i < total; i++)
			if (!node->devices[i].lost)
				see_device(i);
	char list[1024], *rest = list, *word;
	snprintf(list, sizeof(list), "%s", visible ? visible : "");
	while ((word = strtok_r(rest, ", ", &rest))) {
		char *end;
		long index = strtol(word, &end, 10);
		if (*end)
			for (index = 0; index < total && strncmp(node->devices[index].uuid, word, strlen(word)) != 0; index++)
				;
		if (index < 0 || index >= total)
			break;
		see_device(index);
	}
}

static int describe(int ordinal, CUuuid *uuid, char name[96], uint64_t *memory)
{
	if (ordinal < 0 || ordinal >= n_devices)
		return 0;
	cuDeviceGetUuid_v2(uuid, ordinal);
	cuDeviceGetName(name, 96, ordinal);
	*memory = gs_sim_node()->devices[slots[ordinal]].memory_total;
	return 1;
}

static void inject(void)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	if (!path || !*path)
		return;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*initialize)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;
	if (initialize)
		initialize();
	else if (getenv("SIM_VERBOSE")) /* the driver says nothing */
		fprintf(stderr, "simulated libcuda: %s: %s\n", path, library ? "no InitializeInjection" : dlerror());
}

CUresult cuInit(unsigned int flags)
{
	static __thread int inside;
	CALL(cuInit, NULL, .Flags = flags);
	if (flags)
		return END(CUDA_ERROR_INVALID_VALUE);
	if (!gs_sim_engine_usable())
		return END(CUDA_ERROR_NOT_INITIALIZED);
	if (inside)
		return END(CUDA_SUCCESS);
	pthread_mutex_lock(&starting);
	CUresult result = CUDA_SUCCESS;
	if (!gs_sim_engine.initialized) {
		struct gs_sim_node *node = gs_sim_node();
		if (node)
			choose_devices(node);
		if (!node || !n_devices)
			result = CUDA_ERROR_NO_DEVICE;
		else {
			gs_sim_engine.device = describe;
			gs_sim_engine_start();
			inside = 1;
			inject();
			inside = 0;
			__atomic_store_n(&gs_sim_engine.initialized, 1, __ATOMIC_RELEASE);
			if (gs_sim_engine.tracer)
				gs_sim_engine.tracer->resource(GS_SIM_INITIALIZED, NULL, NULL);
		}
	}
	pthread_mutex_unlock(&starting);
	return END(result);
}

CUresult gs_sim_ready(void)
{
	return gs_sim_engine.initialized && gs_sim_engine_usable() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDriverGetVersion(int *version)
{
	struct gs_sim_node *node = gs_sim_node();
	*version = node ? (int)node->cuda_version : 0;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
	*text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : error == CUDA_ERROR_NOT_READY ? "CUDA_ERROR_NOT_READY" :
		error == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR";
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) { return cuGetErrorName(error, text); }

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	(void)id;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	char name[128];
	const char *suffix = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? "_ptsz" : "_v2";
	(void)version;
	snprintf(name, sizeof(name), "%s%s", symbol, suffix);
	*function = dlsym(RTLD_DEFAULT, name);
	if (!*function)
		*function = dlsym(RTLD_DEFAULT, symbol);
	if (!*function) { /* opened RTLD_LOCAL */
		void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
		*function = dlsym(self, name);
		if (!*function)
			*function = dlsym(self, symbol);
	}
	if (status)
		*status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- devices ---- */

CUresult cuDeviceGetCount(int *count)
{
	READY();
	*count = n_devices;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	READY();
	if (ordinal < 0 || ordinal >= n_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

#define DEVICE_STATE(device) \
	READY(); \
	if (device < 0 || device >= n_devices) \
		return CUDA_ERROR_INVALID_DEVICE; \
	struct gs_sim_device *state = &gs_sim_node()->devices[slots[device]]

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	DEVICE_STATE(device);
	snprintf(name, length, "%s", state->name);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	DEVICE_STATE(device);
	const char *text = state->uuid + 4; /* after GPU- */
	memset(uuid, 0, sizeof(*uuid));
	for (int i = 0; i < 16 && *text; text++) {
		unsigned byte;
		if (*text == '-' || sscanf(text, "%2x", &byte) != 1)
			continue;
		uuid->bytes[i++] = byte;
		text++;
	}
	return CUDA_SUCCESS;
}

#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	DEVICE_STATE(device);
	*bytes = state->memory_total;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
	DEVICE_STATE(device);
	snprintf(id, length, "%s", state->bus_id + 4);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	DEVICE_STATE(device);
	unsigned domain = 0, bus = 0, slot = 0;
	sscanf(state->bus_id, "%x:%x:%x", &domain, &bus, &slot);
	switch ((int)attribute) { /* an H200 */
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = bus; break;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *value = slot; break;
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = domain; break;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: *value = 1; break;
	default: *value = 0;
	}
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

struct gs_sim_context *gs_sim_current(void) { return current; }

static CUresult primary(struct gs_sim_context **context, CUdevice device)
{
	READY();
	if (device < 0 || device >= n_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&starting);
	if (!primaries[device])
		primaries[device] = gs_sim_context_new(device, slots[device], 1);
	pthread_mutex_unlock(&starting);
	*context = primaries[device];
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CALL(cuDevicePrimaryCtxRetain, NULL, .pctx = context, .dev = device);
	return END(primary((struct gs_sim_context **)context, device));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { DEVICE_STATE(device); (void)state; return CUDA_SUCCESS; }

static CUresult create(CUcontext *context, CUdevice device)
{
	READY();
	if (device < 0 || device >= n_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	struct gs_sim_context *made = gs_sim_context_new(device, slots[device], 0);
	*context = (CUcontext)made;
	return cuCtxPushCurrent_v2(*context);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device)
{
	CALL(cuCtxCreate_v4, NULL, .pctx = context, .ctxCreateParams = parameters, .flags = flags, .dev = device);
	return END(create(context, device));
}

#undef cuCtxCreate_v2
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	CALL(cuCtxCreate_v2, NULL, .pctx = context, .flags = flags, .dev = device);
	return END(create(context, device));
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	READY();
	current = (struct gs_sim_context *)context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	READY();
	*context = (CUcontext)current;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	if (n_stacked < 16)
		stacked[n_stacked++] = current;
	return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (context)
		*context = (CUcontext)current;
	current = n_stacked ? stacked[--n_stacked] : NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CONTEXT();
	*device = context->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	CONTEXT();
	*id = (handle ? (struct gs_sim_context *)handle : context)->id;
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	if (!handle)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (tracer)
		tracer->resource(GS_SIM_CONTEXT_DESTROYED, (struct gs_sim_context *)handle, NULL);
	if (current == (struct gs_sim_context *)handle)
		current = NULL; /* its streams stay: records may still name them */
	return CUDA_SUCCESS;
}

/* ---- streams ---- */

struct gs_sim_stream *gs_sim_stream_of(CUstream handle, int per_thread)
{
	static __thread struct { struct gs_sim_context *context; struct gs_sim_stream *stream; } own[GS_SIM_MAX_DEVICES];
	if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
		return (struct gs_sim_stream *)handle;
	if (!current)
		return NULL;
	if (handle == CU_STREAM_LEGACY || (!handle && !per_thread))
		return current->legacy;
	if (own[current->slot].context != current) {
		own[current->slot].stream = gs_sim_stream_new(current, 0, 0);
		own[current->slot].context = current;
	}
	return own[current->slot].stream;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	CALL(cuStreamCreateWithPriority, NULL, .phStream = stream, .flags = flags, .priority = priority);
	if (!current)
		return END(CUDA_ERROR_INVALID_CONTEXT);
	*stream = (CUstream)gs_sim_stream_new(current, flags, priority);
	return END(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	CALL(cuStreamCreate, NULL, .phStream = stream, .Flags = flags);
	if (!current)
		return END(CUDA_ERROR_INVALID_CONTEXT);
	*stream = (CUstream)gs_sim_stream_new(current, flags, 0);
	return END(CUDA_SUCCESS);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	struct gs_sim_stream *stream = (struct gs_sim_stream *)handle;
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	CALL(cuStreamDestroy_v2, NULL, .hStream = handle);
	if (!stream)
		return END(CUDA_ERROR_INVALID_HANDLE);
	if (tracer)
		tracer->resource(GS_SIM_STREAM_DESTROYED, stream->context, stream);
	stream->dead = 1; /* what is queued still runs */
	return END(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, 0);
	if (!stream)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = (CUcontext)stream->context;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, 0);
	*priority = stream ? stream->priority : 0;
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, 0);
	*id = stream ? stream->id : 0;
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return CUDA_SUCCESS;
}

/* ---- memory: addresses only, none behind them ---- */

struct allocation {
	struct allocation *next;
	uint64_t address, bytes;
	int slot; /* -1: pinned host memory */
};
static struct allocation *allocations[1024];

static void remember(uint64_t address, uint64_t bytes, int slot)
{
	struct allocation *entry = malloc(sizeof(*entry)), **chain = &allocations[(address >> 9) & 1023];
	gs_sim_lock();
	*entry = (struct allocation){*chain, address, bytes, slot};
	*chain = entry;
	gs_sim_unlock();
}

static int forget(uint64_t address, struct allocation *found)
{
	int known = 0;
	gs_sim_lock();
	for (struct allocation **at = &allocations[(address >> 9) & 1023]; *at; at = &(*at)->next)
		if ((*at)->address == address) {
			struct allocation *gone = *at;
			*found = *gone;
			*at = gone->next;
			free(gone);
			known = 1;
			break;
		}
	gs_sim_unlock();
	return known;
}

/* CUpti_ActivityMemoryKind: 1 pageable, 2 pinned, 3 device. Pinned memory is known by its first address. */
int gs_sim_memory_kind(uint64_t address)
{
	int kind = address >= GS_SIM_DEVICE_MEMORY && address < GS_SIM_DEVICE_MEMORY + (16ull << 40) ? 3 : 1;
	gs_sim_lock();
	for (struct allocation *at = kind == 1 ? allocations[(address >> 9) & 1023] : NULL; at; at = at->next)
		if (at->address == address)
			kind = 2;
	gs_sim_unlock();
	return kind;
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes)
{
	static uint64_t used[GS_SIM_MAX_DEVICES];
	CONTEXT();
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t rounded = (bytes + 511) & ~511ull;
	*pointer = GS_SIM_DEVICE_MEMORY + ((uint64_t)context->slot << 40) + __atomic_fetch_add(&used[context->slot], rounded, __ATOMIC_RELAXED);
	remember(*pointer, rounded, context->slot);
	gs_sim_load_memory(context->slot, rounded);
	return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr pointer)
{
	struct allocation found;
	if (!pointer)
		return CUDA_SUCCESS;
	if (!forget(pointer, &found) || found.slot < 0)
		return CUDA_ERROR_INVALID_VALUE;
	gs_sim_load_memory(found.slot, -(int64_t)found.bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	CALL(cuMemAlloc_v2, NULL, .dptr = pointer, .bytesize = bytes);
	return END(allocate(pointer, bytes));
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	CALL(cuMemFree_v2, NULL, .dptr = pointer);
	return END(release(pointer));
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	CALL(cuMemAllocAsync, NULL, .dptr = pointer, .bytesize = bytes, .hStream = stream);
	return END(allocate(pointer, bytes));
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	CALL(cuMemFreeAsync, NULL, .dptr = pointer, .hStream = stream);
	return END(release(pointer));
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CONTEXT();
	struct gs_sim_device *state = &gs_sim_node()->devices[context->slot];
	uint64_t used = state->memory_reserved;
	for (uint32_t i = 0; i < state->n_processes; i++)
		if (gs_sim_present(&state->processes[i]) && state->processes[i].memory != ~0ull)
			used += state->processes[i].memory;
	*total = state->memory_total;
	*available = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
	CALL(cuMemHostAlloc, NULL, .pp = pointer, .bytesize = bytes, .Flags = flags);
	*pointer = NULL;
	if (posix_memalign(pointer, 4096, bytes ? bytes : 1))
		return END(CUDA_ERROR_OUT_OF_MEMORY);
	remember((uint64_t)*pointer, bytes, -1);
	return END(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *pointer)
{
	struct allocation found;
	CALL(cuMemFreeHost, NULL, .p = pointer);
	if (!forget((uint64_t)pointer, &found))
		return END(CUDA_ERROR_INVALID_VALUE);
	free(pointer);
	return END(CUDA_SUCCESS);
}

/* ---- modules and functions ---- */

static struct gs_sim_function *functions;

struct gs_sim_function *gs_sim_function(const char *name)
{
	gs_sim_lock();
	struct gs_sim_function *function = functions;
	while (function && strcmp(function->name, name) != 0)
		function = function->next;
	if (!function) {
		function = calloc(1, sizeof(*function));
		*function = (struct gs_sim_function){.next = functions, .name = strdup(name), .duration_ns = 10000, .registers = 32};
		functions = function;
	}
	gs_sim_unlock();
	return function;
}

void simKernel(const char *name, uint64_t duration_ns, double sigma, uint32_t registers, uint32_t static_shared)
{
	struct gs_sim_function *function = gs_sim_function(name);
	function->duration_ns = duration_ns;
	function->sigma = sigma;
	function->registers = registers;
	function->static_shared = static_shared;
}

void simCollective(const char *name, uint64_t duration_ns, uint32_t communicator, uint32_t ranks)
{
	struct gs_sim_function *function = gs_sim_function(name);
	function->duration_ns = duration_ns;
	function->communicator = communicator;
	function->ranks = ranks;
}

void simKernelTakesDuration(const char *name) { gs_sim_function(name)->from_argument = 1; }

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	READY();
	*module = (CUmodule)(image ? image : "");
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
	(void)module;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	READY();
	(void)module;
	*function = (CUfunction)gs_sim_function(name);
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	*name = ((struct gs_sim_function *)function)->name;
	return CUDA_SUCCESS;
}
