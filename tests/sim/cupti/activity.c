// SPDX-License-Identifier: Apache-2.0
/* Activity API: which kinds are recorded, from when, and what becomes of operations that the simulated libcuda reports. */
#include "state.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXTERNAL_DEPTH 64
#define KINDS 64

static uint64_t enabled;          /* bit per kind */
static uint32_t ever, graph_seen, graph_sessions, graph_launched;
static uint8_t off_driver[1024], off_runtime[1024]; /* ids that cuptiActivityEnableDriverApi and its like switched off */
static uint8_t any_driver, any_runtime, on_driver[1024], on_runtime[1024];
static uint32_t first_session_ids[256];
static __thread struct { CUpti_ExternalCorrelationKind kind; uint64_t id; } external[EXTERNAL_DEPTH];
static __thread int n_external;
uint8_t gs_sim_latency;
CUpti_ActivityThreadIdType gs_sim_thread_ids;

int gs_sim_enabled(CUpti_ActivityKind kind) { return __atomic_load_n(&enabled, __ATOMIC_RELAXED) >> kind & 1; }

static void sleep_ms(double ms)
{
	struct timespec length = {(time_t)(ms / 1000), (long)((ms - 1000 * (time_t)(ms / 1000)) * 1e6)};
	if (gs_sim_cupti_driver()->simulated_clock)
		gs_sim_cupti_driver()->spend(ms * 1e6);
	else
		nanosleep(&length, NULL);
}

/* What is there already when one of these kinds is enabled. */
static void report_existing(CUpti_ActivityKind kind)
{
	union gs_sim_record record;
	struct gs_sim_driver *driver = gs_sim_cupti_driver();
	CUuuid uuid;
	char name[96];
	uint64_t memory;
	if (kind == CUPTI_ACTIVITY_KIND_DEVICE && driver->device)
		for (int i = 0; driver->device(i, &uuid, name, &memory); i++)
			gs_sim_put(&record, gs_sim_fill_device(&record, i), NULL, 0);
	if (kind == CUPTI_ACTIVITY_KIND_CONTEXT)
		for (struct gs_sim_context *context = driver->contexts(); context; context = context->next)
			gs_sim_put(&record, gs_sim_fill_context(&record, context), context, 0);
}

static CUptiResult enable(CUpti_ActivityKind kind)
{
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	if (kind <= CUPTI_ACTIVITY_KIND_INVALID || kind >= KINDS)
		return gs_sim_result(CUPTI_ERROR_INVALID_KIND);
	if (how->refuse > 0)
		return gs_sim_result((CUptiResult)how->refuse);
	if (!gs_sim_record_size(kind))
		return gs_sim_result(CUPTI_ERROR_NOT_SUPPORTED);
	if (!__atomic_exchange_n(&ever, 1, __ATOMIC_ACQ_REL)) {
		sleep_ms(how->first_enable_ms);
		gs_sim_buffers_start();
	}
	if (kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE && !gs_sim_enabled(kind)) {
		graph_seen = 1;
		graph_sessions++;
	}
	__atomic_fetch_or(&enabled, 1ull << kind, __ATOMIC_RELEASE);
	report_existing(kind);
	return CUPTI_SUCCESS;
}

static CUptiResult disable(CUpti_ActivityKind kind)
{
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	if (kind <= CUPTI_ACTIVITY_KIND_INVALID || kind >= KINDS)
		return gs_sim_result(CUPTI_ERROR_INVALID_KIND);
	if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && how->disable_deadlock > 0 && gs_sim_chance() < how->disable_deadlock)
		for (;;)
			pause();
	__atomic_fetch_and(&enabled, ~(1ull << kind), __ATOMIC_RELEASE);
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { ENTER(GS_SIM_NEEDS_DRIVER); return enable(kind); }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { ENTER(GS_SIM_NEEDS_DRIVER); return disable(kind); }

/* Of one context: CUPTI records the kind for all of them here. */
CUptiResult cuptiActivityEnableContext(CUcontext context, CUpti_ActivityKind kind)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	return context ? enable(kind) : gs_sim_result(CUPTI_ERROR_INVALID_CONTEXT);
}

CUptiResult cuptiActivityDisableContext(CUcontext context, CUpti_ActivityKind kind)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	return context ? disable(kind) : gs_sim_result(CUPTI_ERROR_INVALID_CONTEXT);
}

CUptiResult cuptiActivityEnableLatencyTimestamps(uint8_t on) { ENTER(GS_SIM_NEEDS_DRIVER); gs_sim_latency = on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableLaunchAttributes(uint8_t on) { ENTER(GS_SIM_NEEDS_DRIVER); (void)on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableAllSyncRecords(uint8_t on) { ENTER(GS_SIM_NEEDS_DRIVER); (void)on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableDeviceGraph(uint8_t on) { ENTER(GS_SIM_NEEDS_DRIVER); (void)on; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableHWTrace(uint8_t on) { ENTER(GS_SIM_NEEDS_DRIVER); return on ? gs_sim_result(CUPTI_ERROR_NOT_SUPPORTED) : CUPTI_SUCCESS; } /* a Hopper has none */
CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type) { ENTER(GS_SIM_ALWAYS); gs_sim_thread_ids = type; return CUPTI_SUCCESS; }
CUptiResult cuptiGetThreadIdType(CUpti_ActivityThreadIdType *type) { ENTER(GS_SIM_ALWAYS); *type = gs_sim_thread_ids; return CUPTI_SUCCESS; }

/* Of these ids only, without the whole kind; or, the kind being enabled, not of these. */
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId id, uint8_t on)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	if (id >= sizeof(on_driver))
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	on_driver[id] = on;
	off_driver[id] = !on;
	any_driver |= on;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, uint8_t on)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	if (id >= sizeof(on_runtime))
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	on_runtime[id] = on;
	off_runtime[id] = !on;
	any_runtime |= on;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id)
{
	ENTER(GS_SIM_ALWAYS);
	if (n_external == EXTERNAL_DEPTH)
		return gs_sim_result(CUPTI_ERROR_MAX_LIMIT_REACHED);
	external[n_external].kind = kind;
	external[n_external++].id = id;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last)
{
	ENTER(GS_SIM_ALWAYS);
	int i = n_external - 1;
	while (i >= 0 && external[i].kind != kind)
		i--;
	if (i < 0)
		return gs_sim_result(CUPTI_ERROR_QUEUE_EMPTY);
	if (last)
		*last = external[i].id;
	memmove(&external[i], &external[i + 1], (n_external - i - 1) * sizeof(external[0]));
	n_external--;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiFinalize(void)
{
	ENTER(GS_SIM_FINALIZES);
	if (gs_sim_behaviour()->finalize_graph_crash != 0 && graph_launched)
		gs_sim_crash();
	enabled = 0;
	gs_sim_unsubscribe_all();
	gs_sim_buffers_drop_all();
	ever = graph_seen = graph_sessions = 0;
	n_external = 0;
	return CUPTI_SUCCESS;
}

/* ---- what libcuda reports ---- */

static int is_launch(const struct gs_sim_call *call) { return strstr(call->name, "Launch") || strstr(call->name, "Memcpy") || strstr(call->name, "Memset"); }

static int api_wanted(const struct gs_sim_call *call)
{
	int driver = call->domain == GS_SIM_DRIVER;
	CUpti_ActivityKind kind = driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
	if (call->cbid >= sizeof(on_driver))
		return 0;
	return gs_sim_enabled(kind) ? !(driver ? off_driver : off_runtime)[call->cbid]
		: (driver ? any_driver && on_driver[call->cbid] : any_runtime && on_runtime[call->cbid]);
}

static void called(struct gs_sim_call *call, int exit)
{
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	union gs_sim_record record;
	if (!exit) {
		double cost = call->outer || !is_launch(call) ? 0 : enabled ? how->enabled_ns : ever ? how->residual_ns : 0;
		if (cost > 0)
			gs_sim_cupti_driver()->spend(cost);
		gs_sim_call_back(call, 0);
		return;
	}
	gs_sim_call_back(call, 1);
	if (!ever)
		return;
	if (api_wanted(call))
		gs_sim_put(&record, gs_sim_fill_call(&record, call), NULL, 0);
	if (!call->outer && n_external && gs_sim_enabled(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION))
		for (int i = 0; i < n_external; i++)
			gs_sim_put(&record, gs_sim_fill_external(&record, external[i].kind, external[i].id, call->correlation), NULL, 0);
}

static uint32_t launched(const struct gs_sim_op *op)
{
	switch (op->kind) {
	case GS_SIM_KERNEL: return gs_sim_enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) || gs_sim_enabled(CUPTI_ACTIVITY_KIND_KERNEL);
	case GS_SIM_SET: return gs_sim_enabled(CUPTI_ACTIVITY_KIND_MEMSET);
	case GS_SIM_COPY:
		return gs_sim_enabled(op->copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP ? CUPTI_ACTIVITY_KIND_MEMCPY2 : CUPTI_ACTIVITY_KIND_MEMCPY);
	default: return 0;
	}
}

static uint32_t on_graph_launch(const struct gs_sim_launch *launch, uint32_t *nodes)
{
	int graphs = gs_sim_enabled(CUPTI_ACTIVITY_KIND_GRAPH_TRACE), latched = graph_seen && gs_sim_behaviour()->graph_latch != 0;
	graph_launched = 1;
	*nodes = !graphs && !latched;
	if (graphs && graph_sessions == 1)
		first_session_ids[launch->graph_id % 256] = launch->correlation;
	return graphs ? graph_sessions : 0;
}

static void finished(const struct gs_sim_op *op)
{
	union gs_sim_record record;
	gs_sim_put(&record, gs_sim_fill_op(&record, op), op->stream->context, op->stream->id);
}

static void graph_finished(const struct gs_sim_launch *launch)
{
	union gs_sim_record record;
	uint32_t correlation = launch->correlation, first = first_session_ids[launch->graph_id % 256];
	if (gs_sim_behaviour()->wrong_graph_ids != 0 && launch->record > 1)
		correlation = first ? first : correlation - 1;
	gs_sim_put(&record, gs_sim_fill_graph(&record, launch, correlation), launch->stream->context, launch->stream->id);
}

static void waited(const struct gs_sim_wait *wait)
{
	union gs_sim_record record;
	if (wait->type && gs_sim_enabled(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION))
		gs_sim_put(&record, gs_sim_fill_wait(&record, wait), wait->context, wait->stream);
	gs_sim_waited_back(wait);
}

static void resource(enum gs_sim_resource what, struct gs_sim_context *context, struct gs_sim_stream *stream)
{
	union gs_sim_record record;
	if (what == GS_SIM_CONTEXT_CREATED && gs_sim_enabled(CUPTI_ACTIVITY_KIND_CONTEXT))
		gs_sim_put(&record, gs_sim_fill_context(&record, context), context, 0);
	if (what == GS_SIM_STREAM_CREATED && gs_sim_enabled(CUPTI_ACTIVITY_KIND_STREAM))
		gs_sim_put(&record, gs_sim_fill_stream(&record, stream), context, 0);
	gs_sim_resource_back(what, context, stream);
}

struct gs_sim_tracer gs_sim_tracer = {
	.call = called, .launched = launched, .graph_launched = on_graph_launch, .finished = finished,
	.graph_finished = graph_finished, .waited = waited, .resource = resource,
};
