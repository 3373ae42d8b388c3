// SPDX-License-Identifier: Apache-2.0
/* From a finished operation to the client's buffer. Records wait in the device's pool of their context; a worker thread, or a flush,
 * moves them into buffers that the client gives, and returns these when they are full or flushed: late, and not in order. */
#include "state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONTEXTS 64 /* 0: records of no context */

struct waiting {
	union gs_sim_record record;
	uint64_t visible_ns, order;
	uint32_t size, stream;
};

struct queue {
	struct waiting *rows;
	size_t n, room, dropped;
	uint64_t pool_bytes;
	int slot;
	uint8_t *buffer;
	size_t size, used, records, limit;
};

struct full {
	uint8_t *buffer;
	size_t size, used;
};

static struct queue queues[CONTEXTS];
static struct full held[16];
static int n_held;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;       /* queues' rows */
static pthread_mutex_t delivering = PTHREAD_MUTEX_INITIALIZER; /* held over the client's callbacks */
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_TimestampCallbackFunc timestamp_callback;
static uint32_t timestamps_corrupt, working, flush_period_ms;
static uint64_t n_waiting, order;
static uint32_t undelivered; /* buffers hold records that no one has seen: for the flush period */
__thread int gs_sim_in_buffer_callback;

/* Defaults as cupti_activity.h tells them. */
static size_t attributes[32] = {
	[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE] = 3200000,
	[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT] = 250,
	[CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_POOL_SIZE] = 25000,
	[CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_POOL_LIMIT] = 250,
	[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE] = 3,
	[CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_PRE_ALLOCATE_VALUE] = 3,
};

/* ---- the device's pool ---- */

/* 0: the pool has no room, the record gets no times. */
static int pool_room(struct queue *queue, const struct gs_sim_context *context)
{
	size_t buffer = attributes[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE], limit = attributes[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT];
	size_t per_buffer = buffer / gs_sim_behaviour()->record_bytes;
	size_t needed = per_buffer ? (queue->n + per_buffer) / per_buffer : limit, prepared = attributes[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE];
	size_t buffers = needed < prepared ? prepared : needed < limit ? needed : limit;
	if (context && queue->pool_bytes < buffers * buffer) {
		gs_sim_cupti_driver()->memory(context->slot, buffers * buffer - queue->pool_bytes);
		queue->pool_bytes = buffers * buffer;
		queue->slot = context->slot;
	}
	return needed <= limit;
}

static void spoil(union gs_sim_record *record, int zero)
{
	uint64_t *words = record->words; /* start and end */
	int at = record->any.kind == CUPTI_ACTIVITY_KIND_GRAPH_TRACE ? 1 : 2;
	words[at] = zero ? 0 : words[at] ^ 0x5555555555ull;
	words[at + 1] = zero ? 0 : words[at + 1] ^ 0x3333333333ull;
}

void gs_sim_put(const union gs_sim_record *record, size_t size, const struct gs_sim_context *context, uint32_t stream)
{
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	struct gs_sim_driver *driver = gs_sim_cupti_driver();
	struct queue *queue = &queues[context && context->id < CONTEXTS ? context->id : 0];
	pthread_mutex_lock(&lock);
	if (how->drop > 0 && gs_sim_chance() < how->drop) {
		queue->dropped++;
		pthread_mutex_unlock(&lock);
		return;
	}
	if (queue->n == queue->room) {
		queue->room = queue->room ? 2 * queue->room : 256;
		queue->rows = realloc(queue->rows, queue->room * sizeof(*queue->rows));
	}
	struct waiting *row = &queue->rows[queue->n];
	memcpy(&row->record, record, sizeof(row->record));
	if (context && !pool_room(queue, context))
		spoil(&row->record, 1);
	if (timestamps_corrupt)
		spoil(&row->record, 0);
	row->size = size;
	row->stream = stream;
	row->order = order++;
	row->visible_ns = how->late_ms > 0 ? driver->now() + (uint64_t)(gs_sim_chance() * how->late_ms * 1e6) : 0;
	queue->n++;
	if (!n_waiting++)
		pthread_cond_signal(&work);
	pthread_mutex_unlock(&lock);
}

/* ---- the client's buffers; `delivering` is held ---- */

static void hand_back(struct full full)
{
	gs_sim_in_buffer_callback = 1;
	if (complete)
		complete(NULL, 0, full.buffer, full.size, full.used);
	gs_sim_in_buffer_callback = 0;
}

static void hand_back_held(void)
{
	while (n_held)
		hand_back(held[--n_held]);
}

static void close_buffer(struct queue *queue)
{
	if (!queue->buffer)
		return;
	struct full full = {queue->buffer, queue->size, queue->used};
	queue->buffer = NULL;
	int hold = (int)gs_sim_behaviour()->hold_buffers;
	if (hold <= 1) {
		hand_back(full);
		return;
	}
	held[n_held++] = full;
	if (n_held >= hold || n_held == 16)
		hand_back_held();
}

static int open_buffer(struct queue *queue, size_t size)
{
	if (queue->buffer && (queue->used + size > queue->size || (queue->limit && queue->records >= queue->limit)))
		close_buffer(queue);
	if (queue->buffer)
		return 1;
	if (!request)
		return 0;
	queue->size = queue->limit = queue->used = queue->records = 0;
	gs_sim_in_buffer_callback = 1;
	request(&queue->buffer, &queue->size, &queue->limit);
	gs_sim_in_buffer_callback = 0;
	if (!queue->buffer && gs_sim_behaviour()->null_buffer_crash != 0)
		gs_sim_crash();
	if (queue->buffer && queue->size < size) { /* too small for anything */
		close_buffer(queue);
		return 0;
	}
	if (queue->buffer && !attributes[CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER])
		memset(queue->buffer, 0, queue->size);
	return queue->buffer != NULL;
}

static int by_stream(const void *left, const void *right)
{
	const struct waiting *a = left, *b = right;
	if (a->stream != b->stream)
		return a->stream < b->stream ? 1 : -1;
	return a->order < b->order ? -1 : a->order > b->order;
}

static void deliver(struct queue *queue)
{
	uint64_t now = gs_sim_cupti_driver()->now();
	pthread_mutex_lock(&lock);
	size_t n = 0, kept = 0;
	struct waiting *rows = queue->n ? malloc(queue->n * sizeof(*rows)) : NULL;
	for (size_t i = 0; i < queue->n; i++)
		if (queue->rows[i].visible_ns <= now)
			rows[n++] = queue->rows[i];
		else
			queue->rows[kept++] = queue->rows[i];
	queue->n = kept;
	n_waiting -= n;
	pthread_mutex_unlock(&lock);
	if (gs_sim_behaviour()->grouped != 0 && n)
		qsort(rows, n, sizeof(*rows), by_stream);
	for (size_t i = 0; i < n; i++) {
		if (!open_buffer(queue, rows[i].size)) {
			queue->dropped++;
			continue;
		}
		memcpy(queue->buffer + queue->used, &rows[i].record, rows[i].size);
		queue->used += (rows[i].size + 7) & ~7ull;
		queue->records++;
		undelivered = 1;
	}
	free(rows);
}

static void flush(void)
{
	undelivered = 0;
	for (int i = 0; i < CONTEXTS; i++) {
		deliver(&queues[i]);
		close_buffer(&queues[i]);
	}
	hand_back_held();
}

static void *deliver_at_times(void *unused)
{
	double since_flush = 0;
	(void)unused;
	for (;;) {
		double ms = gs_sim_behaviour()->worker_ms;
		struct timespec pause = {(time_t)(ms / 1000), (long)((ms - 1000 * (time_t)(ms / 1000)) * 1e6)};
		pthread_mutex_lock(&lock);
		while (!n_waiting && !(flush_period_ms && undelivered))
			pthread_cond_wait(&work, &lock);
		pthread_mutex_unlock(&lock);
		nanosleep(&pause, NULL);
		since_flush += ms;
		pthread_mutex_lock(&delivering);
		if (flush_period_ms && since_flush >= flush_period_ms) {
			since_flush = 0;
			flush();
		} else {
			for (int i = 0; i < CONTEXTS; i++)
				deliver(&queues[i]);
		}
		pthread_mutex_unlock(&delivering);
	}
	return NULL;
}

void gs_sim_buffers_start(void)
{
	pthread_t thread;
	if (working++ || gs_sim_cupti_driver()->simulated_clock)
		return;
	pthread_create(&thread, NULL, deliver_at_times, NULL);
	pthread_setname_np(thread, "sim-cupti");
	pthread_detach(thread);
}

void gs_sim_buffers_drop_all(void)
{
	pthread_mutex_lock(&delivering);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < CONTEXTS; i++) {
		struct queue *queue = &queues[i];
		n_waiting -= queue->n;
		queue->n = queue->dropped = 0;
		queue->buffer = NULL;
		if (queue->pool_bytes)
			gs_sim_cupti_driver()->memory(queue->slot, -(int64_t)queue->pool_bytes);
		queue->pool_bytes = 0;
	}
	request = NULL;
	complete = NULL;
	n_held = 0;
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&delivering);
}

/* ---- the client's calls ---- */

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested, CUpti_BuffersCallbackCompleteFunc completed)
{
	ENTER(GS_SIM_ALWAYS);
	if (!requested || !completed)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	pthread_mutex_lock(&delivering);
	request = requested;
	complete = completed;
	pthread_mutex_unlock(&delivering);
	return CUPTI_SUCCESS;
}

static void put_unfinished(struct gs_sim_op *op)
{
	union gs_sim_record record;
	if (op->kind >= GS_SIM_MARK || !op->record || op->consumed)
		return;
	op->consumed = 1;
	gs_sim_put(&record, gs_sim_fill_op(&record, op), op->stream->context, op->stream->id);
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	struct gs_sim_driver *driver = gs_sim_cupti_driver();
	uint64_t begin = driver->now();
	union gs_sim_record record;
	if (!request)
		return gs_sim_result(CUPTI_ERROR_INVALID_OPERATION);
	driver->progress();
	if (flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)
		driver->running(put_unfinished);
	pthread_mutex_lock(&delivering);
	flush();
	pthread_mutex_unlock(&delivering);
	if (gs_sim_enabled(CUPTI_ACTIVITY_KIND_OVERHEAD)) /* told with the next flush */
		gs_sim_put(&record, gs_sim_fill_overhead(&record, CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH, begin, driver->now()), NULL, 0);
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlush(CUcontext context, uint32_t stream, uint32_t flag)
{
	(void)context, (void)stream;
	return cuptiActivityFlushAll(flag);
}

CUptiResult cuptiActivityFlushPeriod(uint32_t milliseconds)
{
	ENTER(GS_SIM_ALWAYS);
	flush_period_ms = milliseconds;
	return CUPTI_SUCCESS;
}

/* May be called in a buffer callback. */
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
	if (!buffer || !record)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	uint8_t *next = buffer;
	if (*record) {
		size_t size = gs_sim_record_size((*record)->kind);
		if (!size)
			return gs_sim_result(CUPTI_ERROR_INVALID_KIND);
		next = (uint8_t *)*record + ((size + 7) & ~7ull);
	}
	if (next + sizeof(CUpti_Activity) > buffer + valid)
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	size_t size = gs_sim_record_size(((CUpti_Activity *)next)->kind);
	if (!size)
		return gs_sim_result(CUPTI_ERROR_INVALID_KIND);
	if (next + size > buffer + valid)
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	*record = (CUpti_Activity *)next;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
	(void)stream;
	if (!dropped)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	*dropped = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < CONTEXTS; i++)
		if (!context || ((struct gs_sim_context *)context)->id == (uint32_t)i) {
			*dropped += queues[i].dropped;
			queues[i].dropped = 0;
		}
	pthread_mutex_unlock(&lock);
	return CUPTI_SUCCESS;
}

static CUptiResult attribute(CUpti_ActivityAttribute name, size_t *size, void *value, int write)
{
	int byte = name == CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER || name == 8 || name == 9;
	size_t needed = byte ? 1 : sizeof(size_t);
	if (!size || !value || (unsigned)name > 10)
		return gs_sim_result(CUPTI_ERROR_INVALID_PARAMETER);
	if (*size < needed)
		return gs_sim_result(CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT);
	*size = needed;
	if (write && byte)
		attributes[name] = *(uint8_t *)value;
	else if (write)
		attributes[name] = *(size_t *)value;
	else if (byte)
		*(uint8_t *)value = attributes[name];
	else
		*(size_t *)value = attributes[name];
	return CUPTI_SUCCESS;
}

CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute name, size_t *size, void *value)
{
	ENTER(GS_SIM_ALWAYS);
	return attribute(name, size, value, 1);
}

CUptiResult cuptiActivityGetAttribute(CUpti_ActivityAttribute name, size_t *size, void *value)
{
	ENTER(GS_SIM_ALWAYS);
	return attribute(name, size, value, 0);
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc callback)
{
	ENTER(GS_SIM_ALWAYS);
	if (timestamp_callback && gs_sim_behaviour()->timestamp_callback_corrupts != 0)
		timestamps_corrupt = 1;
	timestamp_callback = callback;
	return CUPTI_SUCCESS;
}
