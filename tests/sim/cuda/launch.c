// SPDX-License-Identifier: Apache-2.0
/* Launches, copies, memsets, events, waits and graphs of the simulated driver, each also in its _ptsz or _ptds form. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define NAME(function) ((function) ? ((struct gs_sim_function *)(function))->name : NULL)
#define BOTH(define, suffix) define(, 0) define(suffix, 1)

static CUresult launch(CUfunction handle, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream stream_handle,
		       int own, void **arguments, int cooperative)
{
	struct gs_sim_function *function = (struct gs_sim_function *)handle;
	READY();
	struct gs_sim_stream *stream = gs_sim_stream_of(stream_handle, own);
	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!stream)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
		return CUDA_ERROR_INVALID_VALUE;
	gs_sim_lock();
	gs_sim_order_legacy(stream);
	struct gs_sim_op *op = gs_sim_op(stream, GS_SIM_KERNEL);
	op->function = function;
	op->shared = shared;
	op->cooperative = cooperative;
	memcpy(op->grid, grid, sizeof(op->grid));
	memcpy(op->block, block, sizeof(op->block));
	if (function->from_argument && arguments && arguments[0])
		op->duration_ns = *(const uint64_t *)arguments[0];
	gs_sim_enqueue(op);
	gs_sim_unlock();
	return CUDA_SUCCESS;
}

#define SHAPE .gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = bx, .blockDimY = by, .blockDimZ = bz, \
	.sharedMemBytes = shared, .hStream = stream, .kernelParams = arguments
#define LAUNCH(suffix, own) \
	CUresult cuLaunchKernel##suffix(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
					unsigned shared, CUstream stream, void **arguments, void **extra) \
	{ \
		CALL(cuLaunchKernel##suffix, NAME(f), .f = f, SHAPE, .extra = extra); \
		return END(launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, own, arguments, 0)); \
	}
BOTH(LAUNCH, _ptsz)

#define COOPERATIVE(suffix, own) \
	CUresult cuLaunchCooperativeKernel##suffix(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
						   unsigned bz, unsigned shared, CUstream stream, void **arguments) \
	{ \
		CALL(cuLaunchCooperativeKernel##suffix, NAME(f), .f = f, SHAPE); \
		return END(launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, own, arguments, 1)); \
	}
BOTH(COOPERATIVE, _ptsz)

#define EXTENDED(suffix, own) \
	CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra) \
	{ \
		CALL(cuLaunchKernelEx##suffix, NAME(f), .config = config, .f = f, .kernelParams = arguments, .extra = extra); \
		const CUlaunchConfig *c = config; \
		return END(launch(f, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ}, \
				  (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, c->hStream, own, arguments, 0)); \
	}
BOTH(EXTENDED, _ptsz)

/* ---- copies and memsets ---- */

static CUresult wait_stream(struct gs_sim_stream *stream, int recorded)
{
	struct gs_sim_wait wait = {.context = stream->context, .type = recorded ? 3 : 0, .stream = stream->id};
	gs_sim_lock();
	gs_sim_order_legacy(stream);
	struct gs_sim_mark *mark = gs_sim_mark(stream);
	gs_sim_unlock();
	gs_sim_await(&mark, 1, &wait);
	return CUDA_SUCCESS;
}

struct copy {
	uint64_t target, source, bytes;
	struct gs_sim_context *target_context, *source_context; /* NULL: the current one */
};

static int ordinal_of(struct gs_sim_context *told, struct gs_sim_stream *stream)
{
	return told ? told->ordinal : stream->context->ordinal;
}

/* CUpti_ActivityMemcpyKind: 1 HtoD, 2 DtoH, 8 DtoD, 9 HtoH, 10 PtoP. */
static CUresult copy(struct copy what, CUstream handle, int own, int asynchronous)
{
	READY();
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, own);
	if (!stream)
		return CUDA_ERROR_INVALID_CONTEXT;
	int source_kind = gs_sim_memory_kind(what.source), target_kind = gs_sim_memory_kind(what.target);
	int source_slot = source_kind == 3 ? (int)((what.source - GS_SIM_DEVICE_MEMORY) >> 40) : -1;
	int target_slot = target_kind == 3 ? (int)((what.target - GS_SIM_DEVICE_MEMORY) >> 40) : -1;
	gs_sim_lock();
	gs_sim_order_legacy(stream);
	struct gs_sim_op *op = gs_sim_op(stream, GS_SIM_COPY);
	op->bytes = what.bytes;
	op->source_kind = source_kind;
	op->target_kind = target_kind;
	op->asynchronous = asynchronous;
	op->copy_kind = source_kind == 3 && target_kind == 3 ? (source_slot != target_slot ? 10 : 8) :
			source_kind == 3 ? 2 : target_kind == 3 ? 1 : 9;
	op->source_device = ordinal_of(what.source_context, stream);
	op->target_device = ordinal_of(what.target_context, stream);
	op->source_context = what.source_context ? what.source_context->id : stream->context->id;
	op->target_context = what.target_context ? what.target_context->id : stream->context->id;
	gs_sim_enqueue(op);
	gs_sim_unlock();
	return asynchronous ? CUDA_SUCCESS : wait_stream(stream, 0);
}

#define COPIES(name, target_type, target_name, source_type, source_name) \
	CUresult name##_v2(target_type target, source_type source, size_t bytes) \
	{ \
		CALL(name##_v2, NULL, .target_name = target, .source_name = source, .ByteCount = bytes); \
		return END(copy((struct copy){(uint64_t)target, (uint64_t)source, bytes, NULL, NULL}, NULL, 0, 0)); \
	} \
	CUresult name##_v2_ptds(target_type target, source_type source, size_t bytes) \
	{ \
		CALL(name##_v2_ptds, NULL, .target_name = target, .source_name = source, .ByteCount = bytes); \
		return END(copy((struct copy){(uint64_t)target, (uint64_t)source, bytes, NULL, NULL}, NULL, 1, 0)); \
	} \
	CUresult name##Async_v2(target_type target, source_type source, size_t bytes, CUstream stream) \
	{ \
		CALL(name##Async_v2, NULL, .target_name = target, .source_name = source, .ByteCount = bytes, .hStream = stream); \
		return END(copy((struct copy){(uint64_t)target, (uint64_t)source, bytes, NULL, NULL}, stream, 0, 1)); \
	} \
	CUresult name##Async_v2_ptsz(target_type target, source_type source, size_t bytes, CUstream stream) \
	{ \
		CALL(name##Async_v2_ptsz, NULL, .target_name = target, .source_name = source, .ByteCount = bytes, .hStream = stream); \
		return END(copy((struct copy){(uint64_t)target, (uint64_t)source, bytes, NULL, NULL}, stream, 1, 1)); \
	}
COPIES(cuMemcpyHtoD, CUdeviceptr, dstDevice, const void *, srcHost)
COPIES(cuMemcpyDtoH, void *, dstHost, CUdeviceptr, srcDevice)
COPIES(cuMemcpyDtoD, CUdeviceptr, dstDevice, CUdeviceptr, srcDevice)

#define COPY_ANY(suffix, own) \
	CUresult cuMemcpyAsync##suffix(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) \
	{ \
		CALL(cuMemcpyAsync##suffix, NULL, .dst = target, .src = source, .ByteCount = bytes, .hStream = stream); \
		return END(copy((struct copy){target, source, bytes, NULL, NULL}, stream, own, 1)); \
	}
BOTH(COPY_ANY, _ptsz)

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes)
{
	CALL(cuMemcpy, NULL, .dst = target, .src = source, .ByteCount = bytes);
	return END(copy((struct copy){target, source, bytes, NULL, NULL}, NULL, 0, 0));
}

#define COPY_PEER(suffix, own) \
	CUresult cuMemcpyPeerAsync##suffix(CUdeviceptr target, CUcontext to, CUdeviceptr source, CUcontext from, size_t bytes, \
					   CUstream stream) \
	{ \
		CALL(cuMemcpyPeerAsync##suffix, NULL, .dstDevice = target, .dstContext = to, .srcDevice = source, .srcContext = from, \
		     .ByteCount = bytes, .hStream = stream); \
		return END(copy((struct copy){target, source, bytes, (void *)to, (void *)from}, stream, own, 1)); \
	}
BOTH(COPY_PEER, _ptsz)

static CUresult set(CUdeviceptr target, uint32_t value, uint64_t bytes, CUstream handle, int own)
{
	READY();
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, own);
	if (!stream)
		return CUDA_ERROR_INVALID_CONTEXT;
	gs_sim_lock();
	gs_sim_order_legacy(stream);
	struct gs_sim_op *op = gs_sim_op(stream, GS_SIM_SET);
	op->bytes = bytes;
	op->value = value;
	op->asynchronous = 1;
	op->target_kind = target >= GS_SIM_DEVICE_MEMORY ? 3 : 2;
	gs_sim_enqueue(op);
	gs_sim_unlock();
	return CUDA_SUCCESS;
}

#define SETS(name, type, field, width) \
	CUresult name##_v2(CUdeviceptr target, type value, size_t n) \
	{ \
		CALL(name##_v2, NULL, .dstDevice = target, .field = value, .N = n); \
		return END(set(target, value, n * width, NULL, 0)); \
	} \
	CUresult name##Async(CUdeviceptr target, type value, size_t n, CUstream stream) \
	{ \
		CALL(name##Async, NULL, .dstDevice = target, .field = value, .N = n, .hStream = stream); \
		return END(set(target, value, n * width, stream, 0)); \
	} \
	CUresult name##Async_ptsz(CUdeviceptr target, type value, size_t n, CUstream stream) \
	{ \
		CALL(name##Async_ptsz, NULL, .dstDevice = target, .field = value, .N = n, .hStream = stream); \
		return END(set(target, value, n * width, stream, 1)); \
	}
SETS(cuMemsetD8, unsigned char, uc, 1)
SETS(cuMemsetD32, unsigned int, ui, 4)

/* ---- waits and events ---- */

#define STREAM_WAIT(suffix, own) \
	CUresult cuStreamSynchronize##suffix(CUstream handle) \
	{ \
		CALL(cuStreamSynchronize##suffix, NULL, .hStream = handle); \
		struct gs_sim_stream *stream = gs_sim_ready() ? NULL : gs_sim_stream_of(handle, own); \
		return END(!stream ? CUDA_ERROR_INVALID_CONTEXT : stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : \
			   wait_stream(stream, 1)); \
	} \
	CUresult cuStreamQuery##suffix(CUstream handle) \
	{ \
		READY(); \
		struct gs_sim_stream *stream = gs_sim_stream_of(handle, own); \
		if (!stream) \
			return CUDA_ERROR_INVALID_CONTEXT; \
		gs_sim_engine.progress(); \
		return stream->head ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; \
	}
BOTH(STREAM_WAIT, _ptsz)

#undef cuCtxSynchronize
CUresult cuCtxSynchronize(void)
{
	struct gs_sim_call call = {.domain = GS_SIM_DRIVER, .cbid = CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, .name = "cuCtxSynchronize",
				   .context = gs_sim_current()};
	CUresult result = call.context ? gs_sim_ready() : CUDA_ERROR_INVALID_CONTEXT;
	struct gs_sim_mark *marks[1024];
	int n = 0;
	call.result = &result;
	gs_sim_engine.call_begin(&call);
	if (!result) {
		struct gs_sim_wait wait = {.context = call.context, .type = 4, .stream = ~0u};
		gs_sim_lock();
		for (struct gs_sim_stream *stream = call.context->streams; stream && n < 1024; stream = stream->next)
			if (!stream->capture)
				marks[n++] = gs_sim_mark(stream);
		gs_sim_unlock();
		gs_sim_await(marks, n, &wait);
	}
	gs_sim_engine.call_end(&call);
	return result;
}

struct event {
	struct gs_sim_mark *mark;
	struct gs_sim_graph *capture;
	struct gs_sim_stream *stream;
	uint32_t id;
};

CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
	static uint32_t n;
	CALL(cuEventCreate, NULL, .phEvent = handle, .Flags = flags);
	struct event *event = calloc(1, sizeof(*event));
	event->id = __atomic_add_fetch(&n, 1, __ATOMIC_RELAXED);
	*handle = (CUevent)event;
	return END(CUDA_SUCCESS);
}

static void drop(struct event *event)
{
	if (event->mark)
		gs_sim_release(event->mark);
	event->mark = NULL;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	struct event *event = (struct event *)handle;
	CALL(cuEventDestroy_v2, NULL, .hEvent = handle);
	gs_sim_lock();
	drop(event);
	gs_sim_unlock();
	free(event);
	return END(CUDA_SUCCESS);
}

static CUresult record(struct event *event, CUstream handle, int own)
{
	READY();
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, own);
	if (!event || !stream)
		return CUDA_ERROR_INVALID_HANDLE;
	gs_sim_lock();
	drop(event);
	event->capture = stream->capture;
	event->stream = stream;
	if (!stream->capture) {
		gs_sim_order_legacy(stream);
		event->mark = gs_sim_mark(stream);
	}
	gs_sim_unlock();
	return CUDA_SUCCESS;
}

static CUresult wait_event(CUstream handle, struct event *event, int own)
{
	READY();
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, own);
	if (!event || !stream)
		return CUDA_ERROR_INVALID_HANDLE;
	gs_sim_lock();
	if (event->capture) {
		stream->capture = event->capture;
	} else if (event->mark && !gs_sim_reached(event->mark) && event->stream != stream) {
		struct gs_sim_op *op = gs_sim_op(stream, GS_SIM_WAIT);
		op->mark = event->mark;
		op->mark->references++;
		gs_sim_enqueue(op);
	}
	gs_sim_unlock();
	return CUDA_SUCCESS;
}

#define EVENTS(suffix, own) \
	CUresult cuEventRecord##suffix(CUevent event, CUstream stream) \
	{ \
		CALL(cuEventRecord##suffix, NULL, .hEvent = event, .hStream = stream); \
		return END(record((struct event *)event, stream, own)); \
	} \
	CUresult cuStreamWaitEvent##suffix(CUstream stream, CUevent event, unsigned int flags) \
	{ \
		CALL(cuStreamWaitEvent##suffix, NULL, .hStream = stream, .hEvent = event, .Flags = flags); \
		return END(wait_event(stream, (struct event *)event, own)); \
	}
BOTH(EVENTS, _ptsz)

CUresult cuEventQuery(CUevent handle)
{
	struct event *event = (struct event *)handle;
	READY();
	gs_sim_lock();
	int reached = !event->mark || gs_sim_reached(event->mark);
	gs_sim_unlock();
	return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle)
{
	struct event *event = (struct event *)handle;
	CALL(cuEventSynchronize, NULL, .hEvent = handle);
	if (gs_sim_ready() || !event)
		return END(CUDA_ERROR_INVALID_HANDLE);
	gs_sim_lock();
	struct gs_sim_mark *mark = event->mark;
	if (mark)
		mark->references++;
	gs_sim_unlock();
	struct gs_sim_wait wait = {.type = 1, .event = event->id};
	if (mark) {
		wait.context = event->stream->context;
		wait.stream = event->stream->id;
		gs_sim_await(&mark, 1, &wait);
	}
	return END(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to)
{
	struct gs_sim_mark *first = ((struct event *)from)->mark, *second = ((struct event *)to)->mark;
	if (!first || !second)
		return CUDA_ERROR_INVALID_HANDLE;
	gs_sim_lock();
	int reached = gs_sim_reached(first) && gs_sim_reached(second);
	gs_sim_unlock();
	*milliseconds = reached ? ((double)second->end_ns - (double)first->end_ns) / 1e6 : 0;
	return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) { return cuEventElapsedTime_v2(milliseconds, from, to); }

/* ---- graphs: what was captured, one after the other ---- */

static uint32_t n_graphs;

static struct gs_sim_graph *new_graph(void)
{
	struct gs_sim_graph *graph = calloc(1, sizeof(*graph));
	graph->id = __atomic_add_fetch(&n_graphs, 1, __ATOMIC_RELAXED);
	return graph;
}

static CUresult begin_capture(struct gs_sim_stream *stream)
{
	if (!stream)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (stream->capture || stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	stream->capture = new_graph();
	return CUDA_SUCCESS;
}

static CUresult end_capture(struct gs_sim_stream *stream, CUgraph *graph)
{
	if (!stream || !stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	gs_sim_lock();
	struct gs_sim_graph *captured = stream->capture;
	for (struct gs_sim_context *context = gs_sim_engine.contexts(); context; context = context->next)
		for (struct gs_sim_stream *other = context->streams; other; other = other->next)
			if (other->capture == captured)
				other->capture = NULL;
	gs_sim_unlock();
	*graph = (CUgraph)captured;
	return CUDA_SUCCESS;
}

static CUresult launch_graph(struct gs_sim_graph *graph, CUstream handle, int own)
{
	READY();
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, own);
	if (!graph || !graph->executable || !stream)
		return CUDA_ERROR_INVALID_HANDLE;
	gs_sim_lock();
	gs_sim_order_legacy(stream);
	gs_sim_graph_launch(graph, stream);
	gs_sim_unlock();
	return CUDA_SUCCESS;
}

#define GRAPHS(suffix, own) \
	CUresult cuStreamBeginCapture_v2##suffix(CUstream stream, CUstreamCaptureMode mode) \
	{ \
		CALL(cuStreamBeginCapture_v2##suffix, NULL, .hStream = stream, .mode = mode); \
		return END(begin_capture(gs_sim_stream_of(stream, own))); \
	} \
	CUresult cuStreamEndCapture##suffix(CUstream stream, CUgraph *graph) \
	{ \
		CALL(cuStreamEndCapture##suffix, NULL, .hStream = stream, .phGraph = graph); \
		return END(end_capture(gs_sim_stream_of(stream, own), graph)); \
	} \
	static CUresult graph_launch##suffix(CUgraphExec graph, CUstream stream) \
	{ return launch_graph((struct gs_sim_graph *)graph, stream, own); }
BOTH(GRAPHS, _ptsz)

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	CALL(cuGraphLaunch, NULL, .hGraph = graph, .hStream = stream); /* NVIDIA names the field differently in the two */
	return END(graph_launch(graph, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
	CALL(cuGraphLaunch_ptsz, NULL, .hGraphExec = graph, .hStream = stream);
	return END(graph_launch_ptsz(graph, stream));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
	CALL(cuGraphInstantiateWithFlags, NULL, .phGraphExec = executable, .hGraph = graph, .flags = flags);
	const struct gs_sim_graph *source = (struct gs_sim_graph *)graph;
	struct gs_sim_graph *made = new_graph();
	made->executable = 1;
	made->n = made->room = source->n;
	made->nodes = calloc(source->n + 1, sizeof(*made->nodes));
	memcpy(made->nodes, source->nodes, source->n * sizeof(*made->nodes));
	*executable = (CUgraphExec)made;
	return END(CUDA_SUCCESS);
}

static void destroy(struct gs_sim_graph *graph)
{
	free(graph->nodes);
	free(graph);
}

CUresult cuGraphDestroy(CUgraph graph) { destroy((struct gs_sim_graph *)graph); return CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec graph) { destroy((struct gs_sim_graph *)graph); return CUDA_SUCCESS; }

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	struct gs_sim_stream *stream = gs_sim_stream_of(handle, 0);
	*status = stream && stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}
