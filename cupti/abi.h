/* SPDX-License-Identifier: Apache-2.0 */
/* The little of NVIDIA's binary interface that is used here, declared by ourselves so that no build needs NVIDIA's headers.
 * Offsets are identical from CUDA 11.7 to 13.5 unless a version stands beside them; tests/test_cupti_abi.py compares each
 * with the real headers of CUDA 12 and 13. */
#ifndef GPUSTROBE_ABI_H
#define GPUSTROBE_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	CUPTI_OK = 0,
	CUPTI_MAX_LIMIT_REACHED = 12,
	CUPTI_NOT_COMPATIBLE = 14,
	CUPTI_HARDWARE_BUSY = 26,
	CUPTI_VIRTUALIZED_DEVICE = 33,
	CUPTI_INSUFFICIENT_PRIVILEGES = 35,
	CUPTI_MULTIPLE_SUBSCRIBERS = 39,
	CUPTI_VIRTUALIZED_PRIVILEGES = 40,
	CUPTI_CONFIDENTIAL_COMPUTING = 41,
	CUPTI_MIG_DEVICE = 43,
};

enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2 };
enum { SITE_ENTER = 0, SITE_EXIT = 1 };

enum {
	KIND_MEMCPY = 1,
	KIND_MEMSET = 2,
	KIND_KERNEL = 3,
	KIND_CONCURRENT_KERNEL = 10,
	KIND_OVERHEAD = 17,
	KIND_MEMCPY_PEER = 22,
	KIND_SYNCHRONIZATION = 38,
	KIND_GRAPH_TRACE = 51,
};

enum {
	ATTRIBUTE_DEVICE_BUFFER_SIZE = 0,
	ATTRIBUTE_DEVICE_BUFFER_POOL_LIMIT = 2,
	ATTRIBUTE_ZEROED_BUFFER = 5, /* "the buffers we give are zeroed already" */
	ATTRIBUTE_DEVICE_BUFFER_PRE_ALLOCATE = 6,
	ATTRIBUTE_PER_THREAD_BUFFER = 9, /* 1 unless told */
};

/* CUpti_CallbackData */
enum { DATA_SITE = 0, DATA_PARAMS = 16, DATA_SYMBOL = 32, DATA_CONTEXT_UID = 48, DATA_CORRELATION = 64 };

/* Activity records: where each field stands. A reader asks for MIN_* bytes; what lies past them is proved by the version. */
enum {
	KERNEL_REGISTERS = 6, /* 16 bit */
	KERNEL_START = 16, KERNEL_END = 24, KERNEL_DEVICE = 40, KERNEL_CONTEXT = 44, KERNEL_STREAM = 48,
	KERNEL_GRID = 52, KERNEL_BLOCK = 64, KERNEL_STATIC_SHARED = 76, KERNEL_DYNAMIC_SHARED = 80, KERNEL_LOCAL = 84,
	KERNEL_CORRELATION = 92, KERNEL_NAME = 104, KERNEL_LAUNCH_TYPE = 136, KERNEL_NODE = 144, KERNEL_GRAPH = 156,
	KERNEL_CHANNEL = 168, KERNEL_CHANNEL_TYPE = 172, /* version >= 17 */
	KERNEL_CLUSTER = 176,                            /* version >= 18 */
	KERNEL_DEVICE_LAUNCHED = 208,                    /* version >= 130000 */
	MIN_KERNEL = 160,

	MEMCPY_KIND = 4, MEMCPY_SOURCE = 5, MEMCPY_DESTINATION = 6, MEMCPY_FLAGS = 7, MEMCPY_BYTES = 8, MEMCPY_START = 16,
	MEMCPY_END = 24, MEMCPY_DEVICE = 32, MEMCPY_CONTEXT = 36, MEMCPY_STREAM = 40, MEMCPY_CORRELATION = 44,
	MEMCPY_NODE = 64, MEMCPY_GRAPH = 72, MIN_MEMCPY = 80,

	PEER_TO_DEVICE = 52, PEER_TO_CONTEXT = 56, PEER_CORRELATION = 60, PEER_GRAPH = 80, MIN_PEER = 96,

	MEMSET_BYTES = 8, MEMSET_START = 16, MEMSET_END = 24, MEMSET_DEVICE = 32, MEMSET_CONTEXT = 36, MEMSET_STREAM = 40,
	MEMSET_CORRELATION = 44, MEMSET_FLAGS = 48, MEMSET_MEMORY = 50, MEMSET_NODE = 64, MEMSET_GRAPH = 72, MIN_MEMSET = 80,

	GRAPH_CORRELATION = 4, GRAPH_START = 8, GRAPH_END = 16, GRAPH_DEVICE = 24, GRAPH_ID = 28, GRAPH_CONTEXT = 32,
	GRAPH_STREAM = 36, MIN_GRAPH = 48,

	SYNC_TYPE = 4, SYNC_START = 8, SYNC_END = 16, SYNC_CORRELATION = 24, SYNC_CONTEXT = 28, SYNC_STREAM = 32, SYNC_EVENT = 36,
	MIN_SYNC = 40,

	OVERHEAD_KIND = 4, OVERHEAD_OBJECT_KIND = 8, OVERHEAD_OBJECT = 12, OVERHEAD_START = 24, OVERHEAD_END = 32, MIN_OVERHEAD = 40,
};

static inline uint8_t at8(const void *record, size_t offset)
{
	return ((const uint8_t *)record)[offset];
}

static inline uint16_t at16(const void *record, size_t offset)
{
	uint16_t value;
	memcpy(&value, (const char *)record + offset, sizeof value);
	return value;
}

static inline uint32_t at32(const void *record, size_t offset)
{
	uint32_t value;
	memcpy(&value, (const char *)record + offset, sizeof value);
	return value;
}

static inline uint64_t at64(const void *record, size_t offset)
{
	uint64_t value;
	memcpy(&value, (const char *)record + offset, sizeof value);
	return value;
}

typedef void *cupti_subscriber;
typedef void (*cupti_callback)(void *user, int domain, uint32_t cbid, const void *data);
typedef void (*cupti_request)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*cupti_complete)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* X(member, symbol, needed, parameters) */
#define CUPTI_FUNCTIONS(X) \
	X(get_version, "cuptiGetVersion", 1, (uint32_t *)) \
	X(subscribe, "cuptiSubscribe", 1, (cupti_subscriber *, cupti_callback, void *)) \
	X(unsubscribe, "cuptiUnsubscribe", 1, (cupti_subscriber)) \
	X(enable_callback, "cuptiEnableCallback", 1, (uint32_t, cupti_subscriber, int, uint32_t)) \
	X(callback_name, "cuptiGetCallbackName", 1, (int, uint32_t, const char **)) \
	X(register_callbacks, "cuptiActivityRegisterCallbacks", 1, (cupti_request, cupti_complete)) \
	X(enable, "cuptiActivityEnable", 1, (int)) \
	X(disable, "cuptiActivityDisable", 1, (int)) \
	X(flush, "cuptiActivityFlushAll", 1, (uint32_t)) \
	X(next_record, "cuptiActivityGetNextRecord", 1, (uint8_t *, size_t, void **)) \
	X(dropped, "cuptiActivityGetNumDroppedRecords", 1, (void *, uint32_t, size_t *)) \
	X(set_attribute, "cuptiActivitySetAttribute", 1, (int, size_t *, void *)) \
	X(timestamp, "cuptiGetTimestamp", 1, (uint64_t *)) \
	X(finalize, "cuptiFinalize", 0, (void)) \
	X(graph_id, "cuptiGetGraphExecId", 0, (void *, uint32_t *))

/* X(member, symbol, parameters); none is needed but the first two */
#define DRIVER_FUNCTIONS(X) \
	X(device_count, "cuDeviceGetCount", (int *)) \
	X(init, "cuInit", (unsigned)) \
	X(version, "cuDriverGetVersion", (int *)) \
	X(device, "cuDeviceGet", (int *, int)) \
	X(uuid, "cuDeviceGetUuid_v2", (void *, int)) \
	X(uuid_old, "cuDeviceGetUuid", (void *, int)) \
	X(device_name, "cuDeviceGetName", (char *, int, int)) \
	X(memory, "cuDeviceTotalMem_v2", (size_t *, int)) \
	X(attribute, "cuDeviceGetAttribute", (int *, int, int))

struct gs_cupti {
#define X(member, symbol, needed, parameters) int (*member) parameters;
	CUPTI_FUNCTIONS(X)
#undef X
};

struct gs_driver {
#define X(member, symbol, parameters) int (*member) parameters;
	DRIVER_FUNCTIONS(X)
#undef X
};

#endif
