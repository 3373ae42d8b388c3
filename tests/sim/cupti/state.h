/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the simulated libcupti share. */
#ifndef GS_SIM_CUPTI_STATE_H
#define GS_SIM_CUPTI_STATE_H

#include "../cuda/engine.h"

#include <cupti.h>

extern const uint32_t gs_sim_cupti_version; /* version.c: as cuptiGetVersion of that release */

/* How this release behaves. Each can be set: SIM_CUPTI_BEHAVIOUR="late_ms=50,graph_latch=0". `v` is the version. */
#define GS_SIM_BEHAVIOURS(B) \
	B(first_enable_ms, 50) /* what the first cuptiActivityEnable of a process takes; seconds were reported */ \
	B(enabled_ns, 800)     /* host time per launch while a kind is enabled */ \
	B(residual_ns, v < 130001 ? 400 : 100) /* the same after all are disabled, until cuptiFinalize */ \
	B(callback_ns, 150)    /* host time per callback */ \
	B(worker_ms, 20)       /* the thread that turns device buffers into records */ \
	B(late_ms, 0)          /* a record may come this much after its kernel's end, a flush notwithstanding */ \
	B(hold_buffers, 2)     /* full buffers are returned so many at a time, the last one first; 0: at once */ \
	B(grouped, 1)          /* records come by stream, not by time */ \
	B(record_bytes, 32)    /* of the device's pool per record: DEVICE_BUFFER_SIZE * POOL_LIMIT / this many may wait, others get no times */ \
	B(null_buffer_crash, v < 28) /* a client that has no buffer; else its records are dropped */ \
	B(null_driver, 1)      /* without libcuda: as that release; 0: errors only */ \
	B(before_init_crash, v == 130202) /* any call before cuInit has returned */ \
	B(fork_crash, 1)       /* any call in a child of fork */ \
	B(reentry_hang, 1)     /* a call from inside a buffer callback; 0: CUPTI_ERROR_UNKNOWN */ \
	B(graph_latch, 1)      /* GRAPH_TRACE once enabled: no kernels of graphs any more */ \
	B(wrong_graph_ids, v < 130101) /* graph records after the first session carry correlation ids of the first */ \
	B(finalize_graph_crash, v < 24) /* cuptiFinalize after a graph was launched */ \
	B(disable_deadlock, 0) /* probability that cuptiActivityDisable(CONCURRENT_KERNEL) never returns; possible before 130001 */ \
	B(timestamp_callback_corrupts, 1) /* registering a second one: times from then on are wrong */ \
	B(zero_times, 0)       /* probabilities of bad timestamps */ \
	B(reversed_times, 0) \
	B(future_times, 0) \
	B(clock_step_ms, 0)    /* CUPTI's clock jumps by this */ \
	B(clock_step_after_ms, 0) /* so long after cuInit */ \
	B(drop, 0)             /* probability that a record is dropped, and counted so */ \
	B(refuse, 0)           /* the CUptiResult of cuptiActivityEnable: 33 vGPU, 35 permission, 41 confidential computing, 43 MIG */ \
	B(several_subscribers, v >= 130202) /* cuptiSubscribe_v2 */

struct gs_sim_behaviour {
#define FIELD_(name, value) double name;
	GS_SIM_BEHAVIOURS(FIELD_)
#undef FIELD_
};
const struct gs_sim_behaviour *gs_sim_behaviour(void);

/* entry.c */
enum gs_sim_need { GS_SIM_ALWAYS, GS_SIM_NEEDS_DRIVER, GS_SIM_FINALIZES };
struct gs_sim_driver *gs_sim_cupti_driver(void); /* NULL: none on this machine */
CUptiResult gs_sim_cupti_enter(const char *function, enum gs_sim_need need);
_Noreturn void gs_sim_crash(void);
uint64_t gs_sim_cupti_time(uint64_t monotonic); /* as records carry it; 0 stays 0 */
double gs_sim_chance(void);                     /* uniform in [0, 1), the same sequence in every process */
extern struct gs_sim_tracer gs_sim_tracer;
CUptiResult gs_sim_result(CUptiResult result);  /* remembered for cuptiGetLastError */

#define ENTER(need) \
	do { \
		CUptiResult refused_ = gs_sim_cupti_enter(__func__, need); \
		if (refused_) \
			return gs_sim_result(refused_); \
	} while (0)

/* callbacks.c */
void gs_sim_call_back(struct gs_sim_call *call, int exit);
void gs_sim_resource_back(enum gs_sim_resource what, struct gs_sim_context *context, struct gs_sim_stream *stream);
void gs_sim_waited_back(const struct gs_sim_wait *wait);
void gs_sim_unsubscribe_all(void);

/* activity.c */
int gs_sim_enabled(CUpti_ActivityKind kind);
extern uint8_t gs_sim_latency;
extern CUpti_ActivityThreadIdType gs_sim_thread_ids;

/* records.c: fills the release's structure, returns its size */
union gs_sim_record {
	CUpti_Activity any;
	uint8_t bytes[256];
	uint64_t words[32];
};
size_t gs_sim_record_size(CUpti_ActivityKind kind); /* 0: not simulated */
size_t gs_sim_fill_op(union gs_sim_record *record, const struct gs_sim_op *op);
size_t gs_sim_fill_graph(union gs_sim_record *record, const struct gs_sim_launch *launch, uint32_t correlation);
size_t gs_sim_fill_call(union gs_sim_record *record, const struct gs_sim_call *call);
size_t gs_sim_fill_wait(union gs_sim_record *record, const struct gs_sim_wait *wait);
size_t gs_sim_fill_overhead(union gs_sim_record *record, CUpti_ActivityOverheadKind kind, uint64_t from, uint64_t to);
size_t gs_sim_fill_external(union gs_sim_record *record, CUpti_ExternalCorrelationKind kind, uint64_t id, uint32_t correlation);
size_t gs_sim_fill_device(union gs_sim_record *record, int ordinal);
size_t gs_sim_fill_context(union gs_sim_record *record, const struct gs_sim_context *context);
size_t gs_sim_fill_stream(union gs_sim_record *record, const struct gs_sim_stream *stream);

/* buffers.c */
void gs_sim_put(const union gs_sim_record *record, size_t size, const struct gs_sim_context *context, uint32_t stream); /* NULL: of no context */
void gs_sim_buffers_start(void);
void gs_sim_buffers_drop_all(void);
extern __thread int gs_sim_in_buffer_callback;

#endif
