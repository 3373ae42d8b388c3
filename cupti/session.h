/* SPDX-License-Identifier: Apache-2.0 */
/* One agent's presence: from its first wake to the end of its heartbeat. Everything here runs on our one thread. */
#ifndef GPUSTROBE_SESSION_H
#define GPUSTROBE_SESSION_H

#include "recorder.h"
#include "windows.h"

struct gs_plan {
	enum gs_mode mode; /* WINDOWS also stands for sessions; ALWAYS for detail; ON_DEMAND, OFF: nothing planned */
	uint8_t detail;
	uint64_t width, period, seed;
	uint64_t index;      /* of the next window, in a schedule */
	uint64_t next_begin; /* mono; UINT64_MAX = none */
};

struct gs_session {
	struct gs_ring *ring;
	struct gs_names *names;
	struct gs_driver driver;
	struct gs_recorder recorder;
	struct gs_windows windows;
	struct gs_plan plan;
	struct gs_agent wish;       /* as last read whole */
	uint8_t attached;
	uint8_t ready;              /* driver initialized, CUPTI found, policy known */
	uint8_t standing_back;
	uint8_t warmed;
	enum gs_reason refused;     /* not 0: no windows ... */
	uint64_t refused_until;     /* ... before then; UINT64_MAX = ever */
	uint64_t retry_at;          /* when readiness is tried again */
	uint64_t flush_at, flush_step, flush_end;
	uint64_t read_at, tell_at;
	uint32_t flush_heard, finalize_heard;
	uint64_t losses;            /* as last looked at */
	uint64_t thread_ns;
};

/* An agent has come; it has gone (or the process ends: then everything is flushed and the EXIT record written). */
void gs_session_attach(struct gs_session *session);
void gs_session_detach(struct gs_session *session);
void gs_session_exit(struct gs_session *session);

/* Does what is due; returns when to be called again (mono), or earlier if the agent says something. */
uint64_t gs_session_round(struct gs_session *session);

#endif
