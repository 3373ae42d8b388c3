// SPDX-License-Identifier: Apache-2.0
/* Activity records. Filled in the newest structure of the headers at hand and cut to the size the release has: NVIDIA only ever
 * extends them (checked below). */
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel13 Kernel;
typedef CUpti_ActivityMemcpy7 Copy;
typedef CUpti_ActivityMemset5 Set;
typedef CUpti_ActivityDevice6 Device;
typedef CUpti_ActivityContext4 Context;
#else
typedef CUpti_ActivityKernel9 Kernel;
typedef CUpti_ActivityMemcpy6 Copy;
typedef CUpti_ActivityMemset4 Set;
typedef CUpti_ActivityDevice5 Device;
typedef CUpti_ActivityContext3 Context;
#endif
_Static_assert(offsetof(Kernel, graphId) == offsetof(CUpti_ActivityKernel7, graphId), "extended only");
_Static_assert(offsetof(Kernel, localMemoryTotal_v2) == offsetof(CUpti_ActivityKernel8, localMemoryTotal_v2), "extended only");
_Static_assert(offsetof(Copy, channelType) == offsetof(CUpti_ActivityMemcpy5, channelType), "extended only");

static size_t kernel_size(void)
{
	uint32_t v = gs_sim_cupti_version;
#if CUPTI_API_VERSION >= 130000
	return v >= 130401 ? sizeof(CUpti_ActivityKernel13) : v >= 130301 ? sizeof(CUpti_ActivityKernel12)
		: v >= 130101 ? sizeof(CUpti_ActivityKernel11) : sizeof(CUpti_ActivityKernel10);
#else
	return (void)v, sizeof(CUpti_ActivityKernel9);
#endif
}

static size_t copy_size(void)
{
	uint32_t v = gs_sim_cupti_version;
	return v >= 130401 ? sizeof(Copy) : v >= 26 ? sizeof(CUpti_ActivityMemcpy6) : sizeof(CUpti_ActivityMemcpy5);
}

static size_t context_size(void)
{
	uint32_t v = gs_sim_cupti_version;
	return v >= 130101 ? sizeof(Context) : v >= 23 ? sizeof(CUpti_ActivityContext3) : v >= 22 ? sizeof(CUpti_ActivityContext2)
		: sizeof(CUpti_ActivityContext);
}

size_t gs_sim_record_size(CUpti_ActivityKind kind)
{
	uint32_t v = gs_sim_cupti_version;
	switch ((int)kind) {
	case CUPTI_ACTIVITY_KIND_KERNEL: case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return kernel_size();
	case CUPTI_ACTIVITY_KIND_MEMCPY: return copy_size();
	case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
	case CUPTI_ACTIVITY_KIND_MEMSET: return v >= 130401 ? sizeof(Set) : sizeof(CUpti_ActivityMemset4);
	case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return v >= 21 ? sizeof(CUpti_ActivityGraphTrace2) : sizeof(CUpti_ActivityGraphTrace);
	case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
		return v >= 26 ? sizeof(CUpti_ActivitySynchronization2) : sizeof(CUpti_ActivitySynchronization);
	case CUPTI_ACTIVITY_KIND_OVERHEAD:
		return v >= 22 ? sizeof(CUpti_ActivityOverhead3) : v >= 21 ? sizeof(CUpti_ActivityOverhead2) : sizeof(CUpti_ActivityOverhead);
	case CUPTI_ACTIVITY_KIND_DRIVER: case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
	case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
	case CUPTI_ACTIVITY_KIND_DEVICE:
		return v >= 130202 ? sizeof(Device) : v >= 20 ? sizeof(CUpti_ActivityDevice5) : sizeof(CUpti_ActivityDevice4);
	case CUPTI_ACTIVITY_KIND_CONTEXT: return context_size();
	case CUPTI_ACTIVITY_KIND_STREAM: return sizeof(CUpti_ActivityStream);
#if CUPTI_API_VERSION >= 130000
	case CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE: return v >= 130101 ? sizeof(CUpti_ActivityGraphHostNode) : 0; /* no host functions here */
	case CUPTI_ACTIVITY_KIND_HOST_LAUNCH: return v >= 130101 ? sizeof(CUpti_ActivityHostLaunch) : 0;
#endif
	default: return 0;
	}
}

#define BEGIN(type, variable, its_kind) \
	memset(record, 0, sizeof(*record)); \
	_Static_assert(sizeof(type) <= sizeof(*record), "room"); \
	type *variable = (type *)record; \
	variable->kind = its_kind

/* Bad times on demand. */
static void spoil(uint64_t *start, uint64_t *end)
{
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	if (how->zero_times > 0 && gs_sim_chance() < how->zero_times)
		*start = *end = 0;
	if (how->reversed_times > 0 && gs_sim_chance() < how->reversed_times) {
		uint64_t kept = *start;
		*start = *end;
		*end = kept;
	}
	if (how->future_times > 0 && gs_sim_chance() < how->future_times)
		*end += 3600000000000ull;
}

static size_t fill_kernel(union gs_sim_record *record, const struct gs_sim_op *op, uint64_t start, uint64_t end)
{
	BEGIN(Kernel, kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
	if (!gs_sim_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) && gs_sim_enabled(CUPTI_ACTIVITY_KIND_KERNEL))
		kernel->kind = CUPTI_ACTIVITY_KIND_KERNEL;
	kernel->registersPerThread = op->function->registers;
	kernel->start = start;
	kernel->end = kernel->completed = end;
	kernel->deviceId = op->stream->context->ordinal;
	kernel->contextId = op->stream->context->id;
	kernel->streamId = op->stream->id;
	kernel->gridX = op->grid[0];
	kernel->gridY = op->grid[1];
	kernel->gridZ = op->grid[2];
	kernel->blockX = op->block[0];
	kernel->blockY = op->block[1];
	kernel->blockZ = op->block[2];
	kernel->staticSharedMemory = op->function->static_shared;
	kernel->dynamicSharedMemory = op->shared;
	kernel->correlationId = op->correlation;
	kernel->gridId = op->correlation;
	kernel->name = op->function->name;
	if (gs_sim_latency) {
		kernel->queued = gs_sim_cupti_time(op->api_ns);
		kernel->submitted = gs_sim_cupti_time(op->ready_ns);
	}
	kernel->launchType = op->cooperative ? CUPTI_ACTIVITY_LAUNCH_TYPE_COOPERATIVE_SINGLE_DEVICE : CUPTI_ACTIVITY_LAUNCH_TYPE_REGULAR;
	kernel->graphNodeId = op->node_id;
	kernel->graphId = op->launch ? op->launch->graph_id : 0;
	kernel->channelID = op->stream->id;
	kernel->channelType = CUPTI_CHANNEL_TYPE_COMPUTE;
	kernel->clusterX = kernel->clusterY = kernel->clusterZ = 0;
#if CUPTI_API_VERSION >= 130000
	kernel->priority = op->stream->priority;
#endif
	return kernel_size();
}

static size_t fill_copy(union gs_sim_record *record, const struct gs_sim_op *op, uint64_t start, uint64_t end)
{
	BEGIN(Copy, copy, CUPTI_ACTIVITY_KIND_MEMCPY);
	copy->copyKind = op->copy_kind;
	copy->srcKind = op->source_kind;
	copy->dstKind = op->target_kind;
	copy->flags = op->asynchronous ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0;
	copy->bytes = op->bytes;
	copy->start = start;
	copy->end = end;
	copy->deviceId = op->stream->context->ordinal;
	copy->contextId = op->stream->context->id;
	copy->streamId = op->stream->id;
	copy->correlationId = op->correlation;
	copy->graphNodeId = op->node_id;
	copy->graphId = op->launch ? op->launch->graph_id : 0;
	copy->channelID = op->stream->id;
	copy->channelType = CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY;
	copy->copyCount = 1;
	return copy_size();
}

static size_t fill_peer(union gs_sim_record *record, const struct gs_sim_op *op, uint64_t start, uint64_t end)
{
	BEGIN(CUpti_ActivityMemcpyPtoP4, copy, CUPTI_ACTIVITY_KIND_MEMCPY2);
	copy->copyKind = op->copy_kind;
	copy->srcKind = op->source_kind;
	copy->dstKind = op->target_kind;
	copy->flags = op->asynchronous ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0;
	copy->bytes = op->bytes;
	copy->start = start;
	copy->end = end;
	copy->deviceId = op->stream->context->ordinal;
	copy->contextId = op->stream->context->id;
	copy->streamId = op->stream->id;
	copy->srcDeviceId = op->source_device;
	copy->srcContextId = op->source_context;
	copy->dstDeviceId = op->target_device;
	copy->dstContextId = op->target_context;
	copy->correlationId = op->correlation;
	copy->graphNodeId = op->node_id;
	copy->graphId = op->launch ? op->launch->graph_id : 0;
	copy->channelID = op->stream->id;
	copy->channelType = CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY;
	return sizeof(*copy);
}

static size_t fill_set(union gs_sim_record *record, const struct gs_sim_op *op, uint64_t start, uint64_t end)
{
	BEGIN(Set, set, CUPTI_ACTIVITY_KIND_MEMSET);
	set->value = op->value;
	set->bytes = op->bytes;
	set->start = start;
	set->end = end;
	set->deviceId = op->stream->context->ordinal;
	set->contextId = op->stream->context->id;
	set->streamId = op->stream->id;
	set->correlationId = op->correlation;
	set->flags = op->asynchronous ? CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC : 0;
	set->memoryKind = op->target_kind;
	set->graphNodeId = op->node_id;
	set->graphId = op->launch ? op->launch->graph_id : 0;
	set->channelID = op->stream->id;
	set->channelType = CUPTI_CHANNEL_TYPE_COMPUTE;
	return gs_sim_record_size(CUPTI_ACTIVITY_KIND_MEMSET);
}

size_t gs_sim_fill_op(union gs_sim_record *record, const struct gs_sim_op *op)
{
	uint64_t start = gs_sim_cupti_time(op->start_ns), end = op->consumed ? 0 : gs_sim_cupti_time(op->end_ns);
	spoil(&start, &end);
	if (op->kind == GS_SIM_KERNEL)
		return fill_kernel(record, op, start, end);
	if (op->kind == GS_SIM_SET)
		return fill_set(record, op, start, end);
	return op->copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP ? fill_peer(record, op, start, end) : fill_copy(record, op, start, end);
}

size_t gs_sim_fill_graph(union gs_sim_record *record, const struct gs_sim_launch *launch, uint32_t correlation)
{
	uint64_t start = gs_sim_cupti_time(launch->start_ns), end = gs_sim_cupti_time(launch->end_ns);
	BEGIN(CUpti_ActivityGraphTrace2, graph, CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
	spoil(&start, &end);
	graph->correlationId = correlation;
	graph->start = start;
	graph->end = end;
	graph->deviceId = graph->endDeviceId = launch->stream->context->ordinal;
	graph->contextId = graph->endContextId = launch->stream->context->id;
	graph->streamId = launch->stream->id;
	graph->graphId = launch->graph_id;
	return gs_sim_record_size(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
}

static uint32_t thread_id(uint32_t tid)
{
	return gs_sim_thread_ids == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM ? tid : (uint32_t)(uintptr_t)pthread_self();
}

size_t gs_sim_fill_call(union gs_sim_record *record, const struct gs_sim_call *call)
{
	BEGIN(CUpti_ActivityAPI, api, call->domain == GS_SIM_RUNTIME ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER);
	api->cbid = call->cbid;
	api->start = gs_sim_cupti_time(call->begin_ns);
	api->end = gs_sim_cupti_time(call->end_ns);
	api->processId = getpid();
	api->threadId = thread_id(call->tid);
	api->correlationId = call->correlation;
	api->returnValue = *(const uint32_t *)call->result;
	return sizeof(*api);
}

size_t gs_sim_fill_wait(union gs_sim_record *record, const struct gs_sim_wait *wait)
{
	BEGIN(CUpti_ActivitySynchronization2, synchronization, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
	synchronization->type = wait->type;
	synchronization->start = gs_sim_cupti_time(wait->begin_ns);
	synchronization->end = gs_sim_cupti_time(wait->end_ns);
	synchronization->correlationId = wait->correlation;
	synchronization->contextId = wait->context->id;
	synchronization->streamId = wait->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE
		? CUPTI_SYNCHRONIZATION_INVALID_VALUE : wait->stream;
	synchronization->cudaEventId = wait->event ? wait->event : CUPTI_SYNCHRONIZATION_INVALID_VALUE;
	return gs_sim_record_size(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
}

size_t gs_sim_fill_overhead(union gs_sim_record *record, CUpti_ActivityOverheadKind kind, uint64_t from, uint64_t to)
{
	BEGIN(CUpti_ActivityOverhead3, overhead, CUPTI_ACTIVITY_KIND_OVERHEAD);
	overhead->overheadKind = kind;
	overhead->objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
	overhead->objectId.pt.processId = getpid();
	overhead->objectId.pt.threadId = thread_id(gettid());
	overhead->start = gs_sim_cupti_time(from);
	overhead->end = gs_sim_cupti_time(to);
	return gs_sim_record_size(CUPTI_ACTIVITY_KIND_OVERHEAD);
}

size_t gs_sim_fill_external(union gs_sim_record *record, CUpti_ExternalCorrelationKind kind, uint64_t id, uint32_t correlation)
{
	BEGIN(CUpti_ActivityExternalCorrelation, external, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
	external->externalKind = kind;
	external->externalId = id;
	external->correlationId = correlation;
	return sizeof(*external);
}

size_t gs_sim_fill_device(union gs_sim_record *record, int ordinal)
{
	static char names[GS_SIM_MAX_DEVICES][96];
	BEGIN(Device, device, CUPTI_ACTIVITY_KIND_DEVICE);
	uint64_t memory = 0;
	device->id = ordinal;
	device->computeCapabilityMajor = 9;
	device->numMultiprocessors = 132;
	device->numThreadsPerWarp = 32;
	device->isCudaVisible = 1;
	gs_sim_cupti_driver()->device(ordinal, &device->uuid, names[ordinal], &memory);
	device->globalMemorySize = memory;
	device->name = names[ordinal];
	return gs_sim_record_size(CUPTI_ACTIVITY_KIND_DEVICE);
}

size_t gs_sim_fill_context(union gs_sim_record *record, const struct gs_sim_context *its)
{
	BEGIN(Context, context, CUPTI_ACTIVITY_KIND_CONTEXT);
	context->contextId = its->id;
	context->deviceId = its->ordinal;
	context->computeApiKind = CUPTI_ACTIVITY_COMPUTE_API_CUDA;
	context->nullStreamId = its->legacy ? its->legacy->id : 0;
#if CUPTI_API_VERSION >= 130000
	context->processId = getpid();
#endif
	return context_size();
}

size_t gs_sim_fill_stream(union gs_sim_record *record, const struct gs_sim_stream *its)
{
	BEGIN(CUpti_ActivityStream, stream, CUPTI_ACTIVITY_KIND_STREAM);
	stream->contextId = its->context->id;
	stream->streamId = its->id;
	stream->priority = its->priority;
	stream->flag = its->flags & CU_STREAM_NON_BLOCKING ? CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING
		: CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT;
	return sizeof(*stream);
}
