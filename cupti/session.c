/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "buffers.h"
#include "clock.h"
#include "libraries.h"
#include "devices.h"
#include "plan.h"
#include "schedule.h"

#define MS 1000000ull
#define S 1000000000ull
#define NEVER UINT64_MAX

static const char *const reason_texts[] = {
#define X(name, text) text,
	GS_REASONS(X)
#undef X
};

static void tell_state(struct gs_session *session, enum gs_state state, enum gs_reason reason, const char *about)
{
	struct gs_library *library = &session->ring->control->library;
	library->updated = gs_mono();
	if (library->state == state && library->reason == reason)
		return;
	snprintf(library->reason_text, sizeof library->reason_text, "%s%s%s", reason_texts[reason], *about ? ": " : "", about);
	library->error = session->recorder.error;
	__atomic_store_n(&library->reason, reason, __ATOMIC_RELAXED);
	__atomic_store_n(&library->state, state, __ATOMIC_RELEASE);
}

/* The agent's wish, whole; the last one while it is being written. */
static void hear(struct gs_session *session)
{
	const struct gs_agent *agent = &session->ring->control->agent;
	struct gs_agent copy;
	uint32_t sequence = __atomic_load_n(&agent->config_sequence, __ATOMIC_ACQUIRE);
	memcpy(&copy, (const void *)agent, sizeof copy);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (sequence & 1 || __atomic_load_n(&agent->config_sequence, __ATOMIC_RELAXED) != sequence)
		return;
	session->wish = copy;
	__atomic_store_n(&gs_launches.seed, copy.seed, __ATOMIC_RELAXED);
	session->ring->control->library.config_heard = sequence;
	session->ring->control->library.heard = copy.heartbeat;
}

static void refuse(struct gs_session *session, enum gs_reason reason, uint64_t until, const char *about)
{
	session->refused = reason;
	session->refused_until = until;
	tell_state(session, GS_STATE_refused, reason, about);
}

/* cuInit has returned? Another thread may be inside it just now (it is what loads us): a second call waits for the first
 * and is free after it; where nobody has called it, cuDeviceGetCount says so, and we do not. */
static int driver_ready(struct gs_session *session)
{
	int count = 0, version = 0;
	enum gs_reason reason = gs_find_driver(&session->driver);
	if (!reason && (session->driver.device_count(&count) || session->driver.init(0)))
		reason = GS_REASON_driver_not_ready;
	if (reason) {
		tell_state(session, GS_STATE_waiting, reason, "");
		return 0;
	}
	if (session->driver.version && !session->driver.version(&version))
		session->ring->control->library.driver_version = (uint32_t)version;
	return 1;
}

static int cupti_ready(struct gs_session *session)
{
	struct gs_library *library = &session->ring->control->library;
	struct gs_recorder *recorder = &session->recorder;
	struct gs_found found;
	uint32_t version = 0;
	char text[64];
	enum gs_reason reason = gs_find_cupti(&recorder->cupti, &found, library->driver_version / 1000);
	snprintf(library->cupti_path, sizeof library->cupti_path, "%s", found.path);
	if (reason) {
		refuse(session, reason, 0, found.missing);
		return 0;
	}
	int result = recorder->cupti.get_version(&version);
	library->cupti_version = version;
	recorder->policy = gs_policy_of(result ? 0 : version, found.soname);
	library->policy = recorder->policy->mode;
	if (recorder->policy->mode == GS_MODE_OFF) {
		snprintf(text, sizeof text, "version %u, %.40s", version, found.soname);
		refuse(session, GS_REASON_cupti_too_old, NEVER, text);
		return 0;
	}
	return 1;
}

static void latch_graph_level(struct gs_session *session)
{
	struct utsname host = {.nodename = ""};
	struct gs_recorder *recorder = &session->recorder;
	uint32_t level = session->wish.graph_level;
	if (recorder->level_latched)
		return;
	uname(&host);
	recorder->node_level = level == GS_GRAPH_NODES ||
			       (level == GS_GRAPH_BY_SHARE && gs_node_level(host.nodename, (uint32_t)getpid(), session->wish.node_share));
	session->ring->control->library.graph_level = recorder->node_level ? GS_GRAPH_NODES : GS_GRAPH_WHOLE;
}

/* 1 once driver, CUPTI, tables and buffers are there. Tried again every 5 s at most (a program may load CUPTI late). */
static int ready(struct gs_session *session, uint64_t now)
{
	struct gs_recorder *recorder = &session->recorder;
	if (session->ready)
		return 1;
	if (now < session->retry_at)
		return 0;
	session->retry_at = now + 200 * MS;
	if (!driver_ready(session))
		return 0;
	session->retry_at = now + 5 * S;
	if (!cupti_ready(session)) {
		if (session->refused_until == NEVER)
			session->retry_at = NEVER;
		return 0;
	}
	if (gs_buffers_create(session->wish.buffers_mib)) {
		refuse(session, GS_REASON_no_memory, 0, "activity buffers");
		return 0;
	}
	recorder->ring = session->ring;
	recorder->reader.ring = session->ring;
	recorder->reader.names = session->names;
	recorder->reader.windows = &session->windows;
	recorder->reader.next_record = recorder->cupti.next_record;
	recorder->reader.version = session->ring->control->library.cupti_version;
	gs_launches.ring = session->ring;
	gs_launches.names = session->names;
	gs_launches.windows = &session->windows;
	gs_launches.graph_id = recorder->cupti.graph_id;
	session->ring->control->library.buffer_size = GS_BUFFER_SIZE;
	gs_announce_devices(&session->driver, session->names);
	session->refused = 0;
	session->ready = 1;
	return 1;
}

static void tell_window(struct gs_session *session, const struct gs_window_row *row, uint8_t flags)
{
	struct gs_recorder *recorder = &session->recorder;
	struct gs_window record = gs_windows_record(row);
	record.flags |= flags;
	if (recorder->clock_step)
		record.flags |= GS_WINDOW_CLOCK_STEP;
	recorder->clock_step = 0;
	record.cupti_minus_mono = recorder->cupti_minus_mono;
	record.unix_minus_mono = recorder->unix_minus_mono;
	record.pair_error_ns = recorder->pair_error;
	gs_ring_push(session->ring, &record, 1);
}

static uint64_t losses(struct gs_session *session)
{
	return gs_counter_value(session->ring, GS_COUNTER_drop_ring_full) + gs_counter_value(session->ring, GS_COUNTER_drop_cupti) +
	       gs_counter_value(session->ring, GS_COUNTER_drop_pool) + gs_counter_value(session->ring, GS_COUNTER_drop_bad_record);
}

static void mark_lossy(struct gs_session *session, struct gs_window_row *row)
{
	if (!row || !row->id || row->flags & GS_WINDOW_LOSSY)
		return;
	row->flags |= GS_WINDOW_LOSSY;
	gs_add(session->ring, GS_COUNTER_windows_lossy, 1);
	if (!(row->flags & GS_WINDOW_OPEN))
		tell_window(session, row, GS_WINDOW_AMENDED);
}

/* What was lost since the last look may be of any window that is open, or of the newest that closed. */
static void look_for_losses(struct gs_session *session)
{
	uint64_t missed = gs_buffers_missed(), sum;
	if (missed != session->recorder.missed)
		gs_add(session->ring, GS_COUNTER_drop_pool, missed - session->recorder.missed);
	session->recorder.missed = missed;
	if ((sum = losses(session)) == session->losses)
		return;
	session->losses = sum;
	for (unsigned i = 0; i < GS_MOST_ACTIVE; i++)
		mark_lossy(session, gs_windows_active(&session->windows, i));
	mark_lossy(session, &session->windows.rows[session->windows.newest % GS_WINDOW_ROWS]);
	session->losses = losses(session); /* telling may itself have found the ring full */
}

static void close_window(struct gs_session *session, unsigned i, enum gs_close reason, uint64_t now)
{
	struct gs_window_row *row = gs_windows_active(&session->windows, i);
	if (row->end > now)
		__atomic_store_n(&row->end, now > row->begin ? now : row->begin, __ATOMIC_RELAXED);
	gs_windows_close(&session->windows, i);
	row->flags &= (uint8_t)~GS_WINDOW_OPEN;
	row->close = (uint16_t)reason;
	tell_window(session, row, 0);
}

static void close_windows(struct gs_session *session, enum gs_close reason, uint64_t now)
{
	for (unsigned i = 0; i < GS_MOST_ACTIVE; i++) {
		struct gs_window_row *row = gs_windows_active(&session->windows, i);
		if (row && (reason != GS_CLOSE_complete || row->end <= now))
			close_window(session, i, reason, now);
	}
}

static void sleep_ns(uint64_t ns)
{
	struct timespec time = {.tv_sec = (time_t)(ns / S), .tv_nsec = (long)(ns % S)};
	clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

/* Physical end of recording. A call that a window covers may be anywhere before its launch: 20 ms to come out. */
static void stop_recording(struct gs_session *session, uint64_t now)
{
	for (int i = 0; i < 20 && __atomic_load_n(&gs_launches.inside, __ATOMIC_ACQUIRE) > 0; i++)
		sleep_ns(MS);
	if (__atomic_load_n(&gs_launches.inside, __ATOMIC_ACQUIRE) > 0)
		mark_lossy(session, &session->windows.rows[session->windows.newest % GS_WINDOW_ROWS]);
	gs_recorder_disable(&session->recorder);
	if (!gs_launches.counting)
		gs_recorder_unsubscribe(&session->recorder);
	gs_recorder_flush(&session->recorder, 0);
	session->flush_step = 50 * MS;
	session->flush_at = now + session->flush_step;
	session->flush_end = now + 120 * S;
}

/* Before the first of a group of windows: callbacks alone for a while show what a launch costs without activity. */
static enum gs_reason start_recording(struct gs_session *session, uint64_t control)
{
	struct gs_recorder *recorder = &session->recorder;
	enum gs_reason reason;
	latch_graph_level(session);
	gs_buffers_refill();
	if ((reason = gs_recorder_subscribe(recorder)))
		return reason;
	if (control)
		sleep_ns(control);
	if ((reason = gs_recorder_enable(recorder)) && !gs_launches.counting)
		gs_recorder_unsubscribe(recorder);
	session->flush_at = gs_mono() + S / 2; /* windows are shorter; sessions and detail want to be seen while they last */
	return reason;
}

static void open_window(struct gs_session *session, uint64_t now)
{
	struct gs_plan *plan = &session->plan;
	uint64_t begin = plan->next_begin > now ? plan->next_begin : now;
	uint64_t width = plan->width, until = session->wish.detail_until;
	if (plan->detail && begin >= until) { /* the wish is over; the plan will be another at once */
		plan->next_begin = NEVER;
		return;
	}
	if (plan->detail && begin + width > until)
		width = until - begin;
	struct gs_window_row *row = gs_windows_open(&session->windows, begin, begin + width);
	if (row) {
		row->width_ns = width;
		row->period_ns = plan->detail ? width : plan->period;
		row->probability = session->wish.probability;
		row->flags = (uint8_t)(GS_WINDOW_OPEN | (plan->detail ? GS_WINDOW_DETAIL : 0));
		tell_window(session, row, 0);
		gs_windows_activate(&session->windows, row);
		gs_add(session->ring, GS_COUNTER_windows, 1);
		session->ring->control->library.window = row->id;
		tell_state(session, GS_STATE_recording, 0, "");
	}
	gs_add(session->ring, GS_COUNTER_windows_skipped, gs_plan_advance(plan, begin, now));
}

static void skip_window(struct gs_session *session, uint64_t now)
{
	gs_add(session->ring, GS_COUNTER_windows_skipped, 1 + gs_plan_advance(&session->plan, now, now));
}

static uint64_t control_time(const struct gs_session *session)
{
	if (session->recorder.active || session->plan.mode == GS_MODE_ALWAYS)
		return 0;
	return session->plan.width / 8 < 10 * MS ? session->plan.width / 8 : 10 * MS;
}

/* How long before its begin a window is prepared. */
static uint64_t lead(const struct gs_session *session)
{
	uint64_t enable = session->recorder.enable_ns < 50 * MS ? session->recorder.enable_ns : 50 * MS;
	if (session->recorder.active)
		return 20 * MS; /* one follows upon another: nothing to do but to name it */
	return control_time(session) + 2 * enable + MS / 2;
}

static void couldnt_record(struct gs_session *session, enum gs_reason reason, uint64_t now)
{
	char text[96];
	snprintf(text, sizeof text, "CUPTI error %u, activity kind %d", session->recorder.error, session->recorder.error_kind);
	if (reason != GS_REASON_subscriber_taken) {
		refuse(session, reason, now + 60 * S, text);
		return;
	}
	if (session->ring->control->library.state != GS_STATE_standing_back)
		gs_add(session->ring, GS_COUNTER_foreign, 1);
	session->recorder.foreign_seen = 1;
	session->recorder.registered = 0;
	tell_state(session, GS_STATE_standing_back, reason, "");
}

static void open_due(struct gs_session *session, uint64_t now)
{
	enum gs_reason reason;
	if (session->plan.next_begin == NEVER || now + lead(session) < session->plan.next_begin)
		return;
	if (session->refused && now < session->refused_until) {
		skip_window(session, now);
		return;
	}
	session->refused = 0;
	if (!session->recorder.active && (reason = start_recording(session, control_time(session)))) {
		couldnt_record(session, reason, now);
		skip_window(session, gs_mono());
		return;
	}
	open_window(session, gs_mono());
}

static void stand_back(struct gs_session *session, uint64_t now)
{
	if (session->standing_back)
		return;
	close_windows(session, GS_CLOSE_foreign_profiler, now);
	gs_recorder_abandon(&session->recorder);
	__atomic_store_n(&gs_launches.counting, 0, __ATOMIC_RELEASE);
	session->standing_back = 1;
	session->plan = (struct gs_plan){.next_begin = NEVER}; /* made anew afterwards */
	session->flush_at = NEVER;
	gs_add(session->ring, GS_COUNTER_foreign, 1);
	tell_state(session, GS_STATE_standing_back, GS_REASON_foreign_profiler, "");
}

/* 1 while another profiler is at work, by the agent's word. */
static int standing_back(struct gs_session *session, uint64_t now)
{
	if (session->wish.foreign) {
		stand_back(session, now);
	} else if (session->standing_back) {
		session->standing_back = 0;
		gs_recorder_reclaim(&session->recorder);
	}
	return session->standing_back;
}

static void steer_counting(struct gs_session *session, uint64_t now)
{
	int wanted = session->wish.counting && session->plan.mode != GS_MODE_OFF && !session->refused;
	if (wanted && !gs_launches.counting && !session->recorder.subscribed) {
		if (gs_launches.counting_since)
			gs_count_from(&gs_launches, 0);
		gs_count_from(&gs_launches, now);
		if (gs_recorder_subscribe(&session->recorder))
			gs_count_from(&gs_launches, 0);
		else
			gs_launches.counting_since = gs_mono();
	} else if (!wanted && gs_launches.counting) {
		gs_tell_counts(&gs_launches, now);
		__atomic_store_n(&gs_launches.counting, 0, __ATOMIC_RELEASE);
		if (!session->recorder.active)
			gs_recorder_unsubscribe(&session->recorder);
	}
	if (gs_launches.counting && now >= session->tell_at) {
		gs_tell_counts(&gs_launches, now);
		session->tell_at = now + S;
	}
}

static void warm(struct gs_session *session)
{
	if (!session->wish.warm || session->warmed || session->recorder.enabled_once || session->refused)
		return;
	session->warmed = 1;
	gs_buffers_refill();
	latch_graph_level(session);
	if (!gs_recorder_enable(&session->recorder))
		gs_recorder_disable(&session->recorder);
}

static void finalize_due(struct gs_session *session, uint64_t now)
{
	uint64_t next = session->plan.next_begin;
	if (session->wish.finalize == session->finalize_heard || session->recorder.active || gs_launches.counting ||
	    (next != NEVER && next < now + 3 * S))
		return;
	session->finalize_heard = session->wish.finalize;
	gs_recorder_flush(&session->recorder, 0);
	if (gs_recorder_finalize(&session->recorder))
		session->flush_at = NEVER;
}

static void flush_due(struct gs_session *session, uint64_t now)
{
	struct gs_recorder *recorder = &session->recorder;
	if (session->wish.flush != session->flush_heard) {
		session->flush_heard = session->wish.flush;
		session->flush_at = now;
	}
	if (now >= session->flush_at) {
		gs_recorder_flush(recorder, 0);
		/* 50, 100 ... 2 000 ms: what is queued deep comes late */
		session->flush_step = session->flush_step < S ? session->flush_step * 2 : 2 * S;
		if (recorder->active)
			session->flush_step = S / 2;
		session->flush_at = now < session->flush_end || recorder->active ? now + session->flush_step : NEVER;
	} else if (recorder->active && now >= session->read_at) {
		gs_recorder_read(recorder);
		session->read_at = now + 50 * MS; /* 150 000 kernels would fill the free buffers meanwhile */
	}
	if (recorder->reader.zero_times >= 10 && recorder->reader.zero_times * 1000 > recorder->reader.times && !session->refused) {
		close_windows(session, GS_CLOSE_mode_changed, now);
		refuse(session, GS_REASON_bad_timestamps, NEVER, "");
	}
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* When something is due next; at least once a second, for the heartbeat. */
static uint64_t next_time(struct gs_session *session, uint64_t now)
{
	uint64_t next = earliest(now + S, session->flush_at);
	for (unsigned i = 0; i < GS_MOST_ACTIVE; i++) {
		const struct gs_window_row *row = gs_windows_active(&session->windows, i);
		if (row)
			next = earliest(next, row->end);
	}
	if (session->plan.next_begin != NEVER)
		next = earliest(next, session->plan.next_begin - lead(session));
	if (session->recorder.active)
		next = earliest(next, session->read_at);
	if (session->plan.detail)
		next = earliest(next, session->wish.detail_until);
	return next;
}

static void account(struct gs_session *session)
{
	struct gs_library *library = &session->ring->control->library;
	uint64_t spent = gs_clock(CLOCK_THREAD_CPUTIME_ID);
	gs_add(session->ring, GS_COUNTER_thread_ns, spent - session->thread_ns);
	session->thread_ns = spent;
	library->updated = gs_mono();
	library->next_window = session->plan.next_begin == NEVER ? 0 : session->plan.next_begin;
	library->latch_window_ns = session->plan.width;
	library->latch_period_ns = session->plan.period;
	library->buffers = gs_buffers_count();
}

static void record(struct gs_session *session, uint64_t now)
{
	struct gs_recorder *recorder = &session->recorder;
	if (standing_back(session, now))
		return;
	if (gs_plan_update(&session->plan, &session->wish, recorder->policy, now))
		close_windows(session, GS_CLOSE_mode_changed, now);
	close_windows(session, GS_CLOSE_complete, now);
	if (gs_buffers_missed() != recorder->missed)
		close_windows(session, GS_CLOSE_buffers_empty, now);
	steer_counting(session, now);
	warm(session);
	open_due(session, now);
	now = gs_mono();
	close_windows(session, GS_CLOSE_complete, now);
	if (recorder->active && !session->windows.active &&
	    (session->plan.next_begin == NEVER || session->plan.next_begin > now + lead(session) + 5 * MS))
		stop_recording(session, now);
	flush_due(session, now);
	finalize_due(session, now);
	look_for_losses(session);
	if (!recorder->active && !session->refused && session->ring->control->library.reason != GS_REASON_subscriber_taken)
		tell_state(session, GS_STATE_between, 0, "");
}

uint64_t gs_session_round(struct gs_session *session)
{
	uint64_t now = gs_mono();
	hear(session);
	if (!ready(session, now)) {
		account(session);
		return earliest(session->retry_at, now + S);
	}
	record(session, now);
	account(session);
	return next_time(session, gs_mono());
}

void gs_session_attach(struct gs_session *session)
{
	gs_add(session->ring, GS_COUNTER_attaches, 1);
	session->attached = 1;
	session->plan = (struct gs_plan){.next_begin = NEVER};
	session->flush_at = NEVER;
	session->retry_at = 0;
	session->thread_ns = gs_clock(CLOCK_THREAD_CPUTIME_ID);
	session->recorder.reader.n_contexts = 0; /* a new agent knows none */
	hear(session);
	session->flush_heard = session->wish.flush;
	session->finalize_heard = session->wish.finalize;
	if (session->ready) {
		gs_announce_devices(&session->driver, session->names);
		if (session->recorder.enabled_once) /* what came late for the agent before */
			session->flush_at = 0;
	}
}

static void end(struct gs_session *session, enum gs_close reason, int force)
{
	uint64_t now = gs_mono();
	if (!session->ready)
		return;
	close_windows(session, reason, now);
	if (gs_launches.counting)
		gs_tell_counts(&gs_launches, now);
	__atomic_store_n(&gs_launches.counting, 0, __ATOMIC_RELEASE);
	if (session->standing_back)
		return;
	if (session->recorder.active)
		stop_recording(session, now);
	gs_recorder_unsubscribe(&session->recorder);
	if (force)
		gs_recorder_flush(&session->recorder, 1);
	look_for_losses(session);
}

void gs_session_detach(struct gs_session *session)
{
	end(session, GS_CLOSE_agent_gone, 0);
	session->attached = 0;
	session->plan = (struct gs_plan){.next_begin = NEVER};
	gs_buffers_release();
	session->ring->control->library.next_window = 0;
	tell_state(session, GS_STATE_dormant, session->refused, "");
}

void gs_session_exit(struct gs_session *session)
{
	struct gs_exit record = {.type = GS_RECORD_EXIT, .flags = !session->standing_back, .reason = (uint16_t)session->refused};
	if (session->attached) /* else everything was flushed when the agent went */
		end(session, GS_CLOSE_exit, 1);
	record.time = gs_mono();
	record.records = gs_counter_value(session->ring, GS_COUNTER_records);
	for (int i = GS_COUNTER_drop_ring_full; i <= GS_COUNTER_drop_bad_record; i++)
		record.drops += gs_counter_value(session->ring, (enum gs_counter)i);
	gs_ring_push(session->ring, &record, 1);
	account(session);
	tell_state(session, GS_STATE_exited, session->refused, "");
}
