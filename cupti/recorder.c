/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder.h"

#include "buffers.h"
#include "clock.h"

/* Peer copies are a kind of their own; RUNTIME and DRIVER are not here: they were reported to stretch calls twenty times. */
static const int kinds[] = {KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMCPY_PEER, KIND_MEMSET,
			    KIND_SYNCHRONIZATION, KIND_OVERHEAD, KIND_GRAPH_TRACE};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* Without these the rest is still worth recording. */
static int optional(int kind)
{
	return kind == KIND_OVERHEAD || kind == KIND_SYNCHRONIZATION || kind == KIND_GRAPH_TRACE;
}

static int failed(struct gs_recorder *recorder, int result)
{
	if (result) {
		recorder->error = (uint32_t)result;
		gs_add(recorder->ring, GS_COUNTER_cupti_errors, 1);
	}
	return result;
}

static enum gs_reason reason_of(int result)
{
	switch (result) {
	case CUPTI_OK:
		return GS_REASON_none;
	case CUPTI_MULTIPLE_SUBSCRIBERS:
	case CUPTI_MAX_LIMIT_REACHED: /* what older releases said */
		return GS_REASON_subscriber_taken;
	case CUPTI_INSUFFICIENT_PRIVILEGES:
	case CUPTI_VIRTUALIZED_PRIVILEGES:
		return GS_REASON_not_permitted;
	case CUPTI_VIRTUALIZED_DEVICE:
	case CUPTI_CONFIDENTIAL_COMPUTING:
	case CUPTI_MIG_DEVICE:
		return GS_REASON_virtual_device;
	case CUPTI_HARDWARE_BUSY:
	case CUPTI_NOT_COMPATIBLE:
		return GS_REASON_hardware_busy;
	default:
		return GS_REASON_enable_failed;
	}
}

static void enable_callbacks(struct gs_recorder *recorder)
{
	const struct gs_calls *calls = &gs_launches.calls;
	for (uint32_t i = 0; i < calls->n_listed; i++) {
		uint16_t listed = calls->listed[i];
		recorder->cupti.enable_callback(1, recorder->subscriber, listed >> 15 ? DOMAIN_RUNTIME : DOMAIN_DRIVER,
						listed & 0x7fff);
	}
}

enum gs_reason gs_recorder_subscribe(struct gs_recorder *recorder)
{
	uint64_t begun = gs_mono();
	if (recorder->subscribed)
		return 0;
	int result = recorder->cupti.subscribe(&recorder->subscriber, gs_launch_callback, NULL);
	if (failed(recorder, result))
		return reason_of(result);
	if (!gs_launches.calls.n_listed)
		gs_calls_list(&gs_launches.calls, &recorder->cupti);
	__atomic_fetch_add(&gs_launches.generation, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&gs_launches.inside, 0, __ATOMIC_RELAXED);
	gs_names_forget_pointers(recorder->reader.names);
	enable_callbacks(recorder);
	recorder->subscribed = 1;
	gs_add(recorder->ring, GS_COUNTER_enable_ns, gs_mono() - begun);
	return 0;
}

void gs_recorder_unsubscribe(struct gs_recorder *recorder)
{
	if (!recorder->subscribed)
		return;
	uint64_t begun = gs_mono();
	failed(recorder, recorder->cupti.unsubscribe(recorder->subscriber)); /* disables its callbacks */
	recorder->subscribed = 0;
	gs_add(recorder->ring, GS_COUNTER_disable_ns, gs_mono() - begun);
}

static void set_attribute(struct gs_recorder *recorder, int attribute, size_t value, size_t size)
{
	uint8_t byte = (uint8_t)value;
	void *at = size == 1 ? (void *)&byte : (void *)&value;
	recorder->cupti.set_attribute(attribute, &size, at); /* an older one may not know it: then its default holds */
}

/* Device memory: 16 pools at most (a report: 250 default ones took 800 MB), one of them ahead. */
static void set_up(struct gs_recorder *recorder)
{
	if (!recorder->enabled_once) {
		set_attribute(recorder, ATTRIBUTE_DEVICE_BUFFER_POOL_LIMIT, 16, sizeof(size_t));
		set_attribute(recorder, ATTRIBUTE_DEVICE_BUFFER_PRE_ALLOCATE, 1, sizeof(size_t));
		set_attribute(recorder, ATTRIBUTE_ZEROED_BUFFER, 1, 1);
		set_attribute(recorder, ATTRIBUTE_PER_THREAD_BUFFER, 0, 1); /* one for each of a program's threads: 64 before long */
	}
	if (!recorder->registered && !failed(recorder, recorder->cupti.register_callbacks(gs_buffer_request, gs_buffer_complete)))
		recorder->registered = 1;
}

static enum gs_reason enable_kinds(struct gs_recorder *recorder)
{
	for (unsigned i = 0; i < N_KINDS; i++) {
		if (kinds[i] == KIND_GRAPH_TRACE && recorder->node_level)
			continue;
		int result = recorder->cupti.enable(kinds[i]);
		if (!failed(recorder, result) || optional(kinds[i]))
			continue;
		recorder->error_kind = kinds[i];
		while (i--)
			recorder->cupti.disable(kinds[i]);
		return reason_of(result);
	}
	return 0;
}

enum gs_reason gs_recorder_enable(struct gs_recorder *recorder)
{
	uint64_t begun = gs_mono();
	enum gs_reason reason;
	if (recorder->active)
		return 0;
	set_up(recorder);
	reason = enable_kinds(recorder);
	recorder->enable_ns = gs_mono() - begun;
	gs_add(recorder->ring, GS_COUNTER_enable_ns, recorder->enable_ns);
	if (reason)
		return reason;
	if (!recorder->ring->control->library.first_enable_ns)
		recorder->ring->control->library.first_enable_ns = recorder->enable_ns;
	recorder->enabled_once = 1;
	recorder->level_latched = 1;
	recorder->active = 1;
	recorder->sessions++;
	recorder->reader.graph_ids_lie = recorder->sessions > 1 && !recorder->policy->graph_ids_hold;
	__atomic_store_n(&gs_launches.recording, 1, __ATOMIC_RELEASE);
	gs_add(recorder->ring, GS_COUNTER_enables, 1);
	gs_recorder_pair(recorder);
	return 0;
}

void gs_recorder_disable(struct gs_recorder *recorder)
{
	uint64_t begun = gs_mono();
	if (!recorder->active)
		return;
	for (unsigned i = N_KINDS; i--;)
		if (kinds[i] != KIND_GRAPH_TRACE || !recorder->node_level)
			failed(recorder, recorder->cupti.disable(kinds[i]));
	recorder->active = 0;
	__atomic_store_n(&gs_launches.recording, 0, __ATOMIC_RELEASE);
	gs_add(recorder->ring, GS_COUNTER_disable_ns, gs_mono() - begun);
}

void gs_recorder_abandon(struct gs_recorder *recorder)
{
	recorder->foreign_seen = 1;
	recorder->registered = 0; /* it registers its own; ours again before the next window */
	if (!recorder->active) {
		gs_recorder_unsubscribe(recorder); /* held for counting only: makes room */
		return;
	}
	gs_buffers_forget_lent();
	recorder->active = 0;
	recorder->abandoned = 1;
	__atomic_store_n(&gs_launches.recording, 0, __ATOMIC_RELEASE);
}

void gs_recorder_reclaim(struct gs_recorder *recorder)
{
	if (!recorder->abandoned)
		return;
	recorder->abandoned = 0;
	recorder->active = 1;
	gs_recorder_disable(recorder);
	gs_recorder_unsubscribe(recorder);
}

static struct gs_recorder *finalizing;
static uint32_t finalized;

/* On the application's thread, inside CUPTI's callback; our own thread waits and calls nothing. */
static void finalize_in_callback(void)
{
	finalizing->cupti.unsubscribe(finalizing->subscriber);
	failed(finalizing, finalizing->cupti.finalize());
	__atomic_store_n(&finalized, 1, __ATOMIC_RELEASE);
}

int gs_recorder_finalize(struct gs_recorder *recorder)
{
	struct timespec pause = {.tv_nsec = 1000000};
	if (!recorder->policy->may_finalize || !recorder->cupti.finalize || recorder->foreign_seen || recorder->active ||
	    !recorder->enabled_once || gs_recorder_subscribe(recorder))
		return 0;
	finalizing = recorder;
	finalized = 0;
	gs_launches.at_exit = finalize_in_callback;
	__atomic_store_n(&gs_launches.finalize, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2000 && !__atomic_load_n(&finalized, __ATOMIC_ACQUIRE); i++)
		nanosleep(&pause, NULL);
	if (__atomic_exchange_n(&gs_launches.finalize, 0, __ATOMIC_ACQ_REL)) { /* nothing was launched */
		gs_recorder_unsubscribe(recorder);
		return 0;
	}
	while (!__atomic_load_n(&finalized, __ATOMIC_ACQUIRE)) /* it is at it */
		nanosleep(&pause, NULL);
	recorder->subscribed = 0;
	recorder->registered = 0;
	recorder->enabled_once = 0;
	gs_buffers_forget_lent();
	gs_add(recorder->ring, GS_COUNTER_finalizes, 1);
	return 1;
}

void gs_recorder_pair(struct gs_recorder *recorder)
{
	uint64_t best = UINT64_MAX;
	int64_t cupti_minus = 0, unix_minus = 0;
	for (int i = 0; i < 5; i++) {
		uint64_t stamp = 0, before = gs_mono();
		if (recorder->cupti.timestamp(&stamp))
			return;
		uint64_t middle = gs_mono(), real = gs_clock(CLOCK_REALTIME), after = gs_mono();
		if (after - before >= best)
			continue;
		best = after - before;
		cupti_minus = (int64_t)(stamp - (before + (middle - before) / 2));
		unix_minus = (int64_t)(real - (middle + (after - middle) / 2));
	}
	int64_t moved = cupti_minus - recorder->cupti_minus_mono;
	/* NTP slews by 0.5 ms a second at most; windows are at most minutes apart */
	recorder->clock_step |= recorder->cupti_minus_mono && (moved > 50000000 || moved < -50000000);
	recorder->cupti_minus_mono = cupti_minus;
	recorder->unix_minus_mono = unix_minus;
	recorder->pair_error = best > UINT32_MAX ? UINT32_MAX : (uint32_t)best;
	recorder->reader.cupti_minus_mono = cupti_minus;
	recorder->paired = gs_mono();
}

void gs_recorder_read(struct gs_recorder *recorder)
{
	uint64_t begun = gs_mono();
	uint8_t *buffer;
	size_t valid, dropped = 0;
	int number, any = 0;
	while ((number = gs_buffer_full(&buffer, &valid)) >= 0) {
		if (begun > recorder->paired + 1000000000)
			gs_recorder_pair(recorder);
		/* device and host clock agree to microseconds; what ends a millisecond from now has not happened */
		recorder->reader.latest = (uint64_t)((int64_t)gs_mono() + recorder->cupti_minus_mono + 1000000);
		gs_read_buffer(&recorder->reader, buffer, valid);
		gs_buffer_done(number);
		any = 1;
	}
	if (recorder->active)
		gs_buffers_refill();
	if (!any)
		return;
	gs_add(recorder->ring, GS_COUNTER_buffer_ns, gs_mono() - begun);
	if (!recorder->cupti.dropped(NULL, 0, &dropped) && dropped)
		gs_add(recorder->ring, GS_COUNTER_drop_cupti, dropped);
}

void gs_recorder_flush(struct gs_recorder *recorder, int force)
{
	uint64_t begun = gs_mono();
	if (!recorder->enabled_once || recorder->abandoned)
		return;
	failed(recorder, recorder->cupti.flush(force ? 1 : 0)); /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */
	gs_add(recorder->ring, GS_COUNTER_flush_ns, gs_mono() - begun);
	gs_recorder_read(recorder);
}
