/* SPDX-License-Identifier: Apache-2.0 */
/* CUPTI switched on and off. All calls come from our one thread, outside CUPTI's callbacks, after cuInit has returned. */
#ifndef GPUSTROBE_RECORDER_H
#define GPUSTROBE_RECORDER_H

#include "activity.h"
#include "launches.h"
#include "policy.h"

struct gs_recorder {
	struct gs_ring *ring;
	struct gs_cupti cupti;
	const struct gs_policy *policy;
	struct gs_reader reader;
	cupti_subscriber subscriber;
	uint8_t subscribed;
	uint8_t registered; /* our buffer callbacks are CUPTI's, as far as we know */
	uint8_t active;     /* activity kinds are enabled */
	uint8_t abandoned;  /* a foreign profiler came while they were: we have let go of them */
	uint8_t enabled_once; /* since the start, or since CUPTI was finalized */
	uint8_t node_level;
	uint8_t level_latched;
	uint8_t foreign_seen; /* ever: nobody finalizes under another profiler */
	uint32_t error;       /* CUptiResult of the last failure */
	int error_kind;       /* activity kind that was refused */
	uint64_t sessions;    /* times activity was enabled */
	uint64_t enable_ns;   /* how long enabling took lately */
	uint64_t missed;      /* gs_buffers_missed() last seen */
	int64_t cupti_minus_mono;
	int64_t unix_minus_mono;
	uint32_t pair_error;
	uint8_t clock_step;  /* since the last WINDOW record */
	uint64_t paired;     /* mono, when the clocks were last read against each other */
};

/* Callbacks on: launches are seen from here on. 0 or the reason; subscriber_taken is no failure of ours. */
enum gs_reason gs_recorder_subscribe(struct gs_recorder *recorder);
void gs_recorder_unsubscribe(struct gs_recorder *recorder);

/* Activity kinds on. All of them or, with the reason, none. */
enum gs_reason gs_recorder_enable(struct gs_recorder *recorder);
void gs_recorder_disable(struct gs_recorder *recorder);

/* Another profiler is here: nothing is disabled, flushed or unsubscribed that could be its own. It went: tidy up. */
void gs_recorder_abandon(struct gs_recorder *recorder);
void gs_recorder_reclaim(struct gs_recorder *recorder);

/* Asks CUPTI for finished records (force: for unfinished ones too; at exit only), reads what it gave back. */
void gs_recorder_flush(struct gs_recorder *recorder, int force);
void gs_recorder_read(struct gs_recorder *recorder);

/* Finalizes CUPTI as its documentation asks: unsubscribed and called inside the exit of an API call of the application, which
 * is waited for (2 s at most). Between windows, nobody else using CUPTI. 1 if it was done. */
int gs_recorder_finalize(struct gs_recorder *recorder);

/* Reads the clocks against each other. */
void gs_recorder_pair(struct gs_recorder *recorder);

#endif
