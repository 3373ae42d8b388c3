/* SPDX-License-Identifier: Apache-2.0 */
#include "activity.h"

#define BATCH 64 /* records that share one reservation in the ring */

struct batch {
	struct gs_reader *reader;
	const uint8_t *end; /* of the buffer's valid part */
	struct gs_activity records[BATCH];
	uint32_t n;
};

static void push(struct batch *batch)
{
	if (batch->n)
		gs_ring_push(batch->reader->ring, batch->records, batch->n);
	batch->n = 0;
}

static void announce_context(struct batch *batch, const struct gs_activity *seen)
{
	struct gs_reader *reader = batch->reader;
	for (uint32_t i = 0; i < reader->n_contexts; i++)
		if (reader->contexts[i].context == seen->context && reader->contexts[i].device == seen->device)
			return;
	if (reader->n_contexts == GS_MOST_CONTEXTS) /* forget; announcing one twice does no harm */
		reader->n_contexts = 0;
	reader->contexts[reader->n_contexts].context = seen->context;
	reader->contexts[reader->n_contexts++].device = seen->device;
	struct gs_context record = {
		.type = GS_RECORD_CONTEXT, .context = seen->context, .device = seen->device, .first = seen->start};
	gs_ring_push(reader->ring, &record, 1);
}

/* Times that can be true? Counts why not. */
static int times_hold(struct gs_reader *reader, const struct gs_activity *activity)
{
	reader->times++;
	if (!activity->start || !activity->end) {
		reader->zero_times++;
		gs_add(reader->ring, GS_COUNTER_drop_zero_time, 1);
	} else if (activity->end < activity->start) {
		gs_add(reader->ring, GS_COUNTER_drop_reversed_time, 1);
	} else if (activity->end > reader->latest) {
		gs_add(reader->ring, GS_COUNTER_drop_future_time, 1);
	} else {
		return 1;
	}
	return 0;
}

static void place(struct gs_activity *activity, struct gs_cover cover)
{
	uint32_t multiplicity = cover.multiplicity < 15 ? cover.multiplicity : 15;
	activity->window = cover.window;
	activity->flags |= (uint8_t)(multiplicity << GS_MULTIPLICITY_SHIFT);
}

/* Of a launch: by its correlation id. What no window covers is left out. */
static int place_launched(struct gs_reader *reader, struct gs_activity *activity)
{
	struct gs_cover cover = gs_windows_find(reader->windows, activity->correlation);
	if (!cover.window) {
		gs_add(reader->ring, GS_COUNTER_drop_outside, 1);
		return 0;
	}
	place(activity, cover);
	return 1;
}

static int place_timed(struct gs_reader *reader, struct gs_activity *activity)
{
	place(activity, gs_windows_at(reader->windows, activity->start - (uint64_t)reader->cupti_minus_mono));
	return 1;
}

static uint32_t shape_of(struct gs_reader *reader, const uint8_t *record)
{
	struct gs_shape shape = {{0, 0, 0}, 0, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0};
	const char *name = (const char *)(uintptr_t)at64(record, KERNEL_NAME);
	if (name)
		shape.name = gs_pointer_id(reader->names, name, 1);
	memcpy(shape.grid, record + KERNEL_GRID, sizeof shape.grid);
	memcpy(shape.block, record + KERNEL_BLOCK, sizeof shape.block);
	if (reader->version >= 20) /* 18 stands for two layouts, one of them 11.8's */
		memcpy(shape.cluster, record + KERNEL_CLUSTER, sizeof shape.cluster);
	shape.static_shared = at32(record, KERNEL_STATIC_SHARED);
	shape.dynamic_shared = at32(record, KERNEL_DYNAMIC_SHARED);
	shape.local_per_thread = at32(record, KERNEL_LOCAL);
	shape.registers = at16(record, KERNEL_REGISTERS);
	return gs_shape_id(reader->names, &shape);
}

static int kernel(struct gs_reader *reader, const uint8_t *record, struct gs_activity *out)
{
	out->type = GS_RECORD_KERNEL;
	out->start = at64(record, KERNEL_START);
	out->end = at64(record, KERNEL_END);
	out->correlation = at32(record, KERNEL_CORRELATION);
	if (!times_hold(reader, out) || !place_launched(reader, out))
		return 0;
	out->device = at32(record, KERNEL_DEVICE);
	out->context = at32(record, KERNEL_CONTEXT);
	out->stream = at32(record, KERNEL_STREAM);
	out->graph = at32(record, KERNEL_GRAPH);
	out->node = at64(record, KERNEL_NODE);
	out->kind = at8(record, KERNEL_LAUNCH_TYPE);
	out->kernel.shape = shape_of(reader, record);
	out->kernel.channel = ~0u;
	if (reader->version >= 17)
		out->kernel.channel = at32(record, KERNEL_CHANNEL_TYPE) << 24 | (at32(record, KERNEL_CHANNEL) & 0xffffff);
	if (reader->version >= 130000 && at8(record, KERNEL_DEVICE_LAUNCHED))
		out->flags |= GS_ACTIVITY_DEVICE_LAUNCHED;
	return 1;
}

static int copy(struct gs_reader *reader, const uint8_t *record, struct gs_activity *out, int peer)
{
	out->type = GS_RECORD_MEMCPY;
	out->start = at64(record, MEMCPY_START);
	out->end = at64(record, MEMCPY_END);
	out->correlation = at32(record, peer ? PEER_CORRELATION : MEMCPY_CORRELATION);
	if (!times_hold(reader, out) || !place_launched(reader, out))
		return 0;
	out->kind = (uint16_t)(at8(record, MEMCPY_KIND) | (at8(record, MEMCPY_SOURCE) & 15) << 8 |
			       (at8(record, MEMCPY_DESTINATION) & 15) << 12);
	out->device = at32(record, MEMCPY_DEVICE);
	out->context = at32(record, MEMCPY_CONTEXT);
	out->stream = at32(record, MEMCPY_STREAM);
	out->bytes = at64(record, MEMCPY_BYTES);
	out->graph = at32(record, peer ? PEER_GRAPH : MEMCPY_GRAPH);
	if (at8(record, MEMCPY_FLAGS) & 1)
		out->flags |= GS_ACTIVITY_ASYNC;
	if (peer) {
		out->flags |= GS_ACTIVITY_PEER;
		out->peer.device = at32(record, PEER_TO_DEVICE);
		out->peer.context = at32(record, PEER_TO_CONTEXT);
	} else {
		out->node = at64(record, MEMCPY_NODE);
	}
	return 1;
}

static int set(struct gs_reader *reader, const uint8_t *record, struct gs_activity *out)
{
	out->type = GS_RECORD_MEMSET;
	out->start = at64(record, MEMSET_START);
	out->end = at64(record, MEMSET_END);
	out->correlation = at32(record, MEMSET_CORRELATION);
	if (!times_hold(reader, out) || !place_launched(reader, out))
		return 0;
	out->kind = at16(record, MEMSET_MEMORY);
	out->device = at32(record, MEMSET_DEVICE);
	out->context = at32(record, MEMSET_CONTEXT);
	out->stream = at32(record, MEMSET_STREAM);
	out->bytes = at64(record, MEMSET_BYTES);
	out->graph = at32(record, MEMSET_GRAPH);
	out->node = at64(record, MEMSET_NODE);
	if (at16(record, MEMSET_FLAGS) & 1)
		out->flags |= GS_ACTIVITY_ASYNC;
	return 1;
}

static int graph(struct gs_reader *reader, const uint8_t *record, struct gs_activity *out)
{
	out->type = GS_RECORD_GRAPH;
	out->start = at64(record, GRAPH_START);
	out->end = at64(record, GRAPH_END);
	out->correlation = at32(record, GRAPH_CORRELATION);
	if (!times_hold(reader, out))
		return 0;
	if (reader->graph_ids_lie) { /* still device time, though nobody knows whose: window 0, no stack */
		gs_add(reader->ring, GS_COUNTER_drop_graph_correlation, 1);
		out->correlation = 0;
	} else if (!place_launched(reader, out)) {
		return 0;
	}
	out->device = at32(record, GRAPH_DEVICE);
	out->context = at32(record, GRAPH_CONTEXT);
	out->stream = at32(record, GRAPH_STREAM);
	out->graph = at32(record, GRAPH_ID);
	return 1;
}

static int synchronization(struct gs_reader *reader, const uint8_t *record, struct gs_activity *out)
{
	out->type = GS_RECORD_SYNC;
	out->start = at64(record, SYNC_START);
	out->end = at64(record, SYNC_END);
	if (!times_hold(reader, out) || !place_timed(reader, out))
		return 0;
	out->correlation = at32(record, SYNC_CORRELATION);
	out->kind = (uint16_t)at32(record, SYNC_TYPE);
	out->device = ~0u;
	out->context = at32(record, SYNC_CONTEXT);
	out->stream = at32(record, SYNC_STREAM);
	out->event = at32(record, SYNC_EVENT);
	return 1;
}

static int overhead(struct gs_reader *reader, const uint8_t *record, struct gs_activity *out)
{
	uint32_t kind = at32(record, OVERHEAD_KIND);
	out->type = GS_RECORD_OVERHEAD;
	out->start = at64(record, OVERHEAD_START);
	out->end = at64(record, OVERHEAD_END);
	if (!times_hold(reader, out) || !place_timed(reader, out))
		return 0;
	out->kind = (uint16_t)(kind == 1u << 16 ? 9 : kind < 1u << 16 ? kind : kind >> 16); /* 1 is the driver's compiler */
	out->device = ~0u;
	out->context = ~0u;
	out->stream = ~0u;
	out->event = at32(record, OVERHEAD_OBJECT);
	gs_add(reader->ring, GS_COUNTER_overhead_ns, out->end - out->start);
	return 1;
}

/* Room for the fields that are read? */
static int fits(const struct batch *batch, const uint8_t *record, size_t size)
{
	if ((size_t)(batch->end - record) >= size)
		return 1;
	gs_add(batch->reader->ring, GS_COUNTER_drop_bad_record, 1);
	return 0;
}

/* Bytes of a kernel record that are read in this version. */
static size_t kernel_size(uint32_t version)
{
	return version >= 130000 ? 216 : version >= 20 ? 208 : version >= 17 ? 176 : MIN_KERNEL;
}

static int convert(struct batch *batch, const uint8_t *record, struct gs_activity *out)
{
	struct gs_reader *reader = batch->reader;
	memset(out, 0, sizeof *out);
	switch (at32(record, 0)) {
	case KIND_KERNEL:
	case KIND_CONCURRENT_KERNEL:
		return fits(batch, record, kernel_size(reader->version)) && kernel(reader, record, out);
	case KIND_MEMCPY:
		return fits(batch, record, MIN_MEMCPY) && copy(reader, record, out, 0);
	case KIND_MEMCPY_PEER:
		return fits(batch, record, MIN_PEER) && copy(reader, record, out, 1);
	case KIND_MEMSET:
		return fits(batch, record, MIN_MEMSET) && set(reader, record, out);
	case KIND_GRAPH_TRACE:
		return fits(batch, record, MIN_GRAPH) && graph(reader, record, out);
	case KIND_SYNCHRONIZATION:
		return fits(batch, record, MIN_SYNC) && synchronization(reader, record, out);
	case KIND_OVERHEAD:
		return fits(batch, record, MIN_OVERHEAD) && overhead(reader, record, out);
	default:
		gs_add(reader->ring, GS_COUNTER_drop_unknown_kind, 1);
		return 0;
	}
}

void gs_read_buffer(struct gs_reader *reader, uint8_t *buffer, size_t valid)
{
	struct batch batch = {.reader = reader, .end = buffer + valid, .n = 0};
	void *at = NULL;
	uint64_t seen = 0;
	gs_names_forget_pointers(reader->names);
	while (valid && !reader->next_record(buffer, valid, &at)) {
		const uint8_t *record = at;
		struct gs_activity *out = &batch.records[batch.n];
		if (record < buffer || record > batch.end || batch.end - record < 8) {
			gs_add(reader->ring, GS_COUNTER_drop_bad_record, 1);
			break;
		}
		seen++;
		if (!convert(&batch, record, out))
			continue;
		if (out->device != ~0u)
			announce_context(&batch, out);
		if (++batch.n == BATCH)
			push(&batch);
	}
	push(&batch);
	gs_add(reader->ring, GS_COUNTER_activity_records, seen);
	gs_add(reader->ring, GS_COUNTER_activity_buffers, 1);
}
