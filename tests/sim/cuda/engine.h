/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated device engine inside libcuda.so.1: streams in order, several streams and devices at a time, events, graphs, collectives.
 * Times of an operation follow from the operations before it, not from when a thread woke up: an executor only reports them.
 * libcudart and libcupti of the simulation reach it through gs_sim_driver(); nothing else of this header is exported. */
#ifndef GS_SIM_ENGINE_H
#define GS_SIM_ENGINE_H

#include "../node.h"

#include <cuda.h>

enum gs_sim_kind { GS_SIM_KERNEL = 1, GS_SIM_COPY, GS_SIM_SET, GS_SIM_MARK, GS_SIM_WAIT, GS_SIM_SYNC, GS_SIM_GRAPH };
enum gs_sim_domain { GS_SIM_DRIVER = 1, GS_SIM_RUNTIME = 2 }; /* as CUpti_CallbackDomain */
enum gs_sim_resource { GS_SIM_CONTEXT_CREATED = 1, GS_SIM_CONTEXT_DESTROYED = 2, GS_SIM_STREAM_CREATED = 3,
		       GS_SIM_STREAM_DESTROYED = 4, GS_SIM_INITIALIZED = 5 }; /* as CUpti_CallbackIdResource */

/* What CUfunction points to. */
struct gs_sim_function {
	struct gs_sim_function *next;
	const char *name; /* lives as long as the process */
	uint64_t duration_ns;
	double sigma;          /* of the logarithm of the duration; 0: always the same */
	uint32_t from_argument; /* the first kernel argument, a uint64_t, is the duration */
	uint32_t registers, static_shared;
	uint32_t communicator, ranks; /* ranks > 0: a collective, that ends when all ranks have come, plus its duration */
};

/* A place in a stream; `end` is when the stream got there. */
struct gs_sim_mark {
	uint32_t references;
	uint32_t done;
	uint64_t end_ns;
};

struct gs_sim_context {
	struct gs_sim_context *next;
	uint32_t id;
	int ordinal; /* as the process numbers its devices */
	int slot;    /* as the node does */
	struct gs_sim_stream *streams, *legacy;
	uint32_t primary, next_stream;
};

struct gs_sim_stream {
	struct gs_sim_stream *next;
	struct gs_sim_context *context;
	struct gs_sim_op *head, *tail;
	struct gs_sim_graph *capture;
	uint64_t last_end;
	uint32_t id, flags, depth, dead;
	int priority;
};

struct gs_sim_op {
	struct gs_sim_op *next;
	struct gs_sim_stream *stream;
	struct gs_sim_function *function;
	struct gs_sim_mark *mark;
	struct gs_sim_launch *launch; /* of a graph; NULL: none */
	uint64_t api_ns, ready_ns, start_ns, end_ns, duration_ns; /* CLOCK_MONOTONIC */
	uint64_t bytes, node_id, accounted_ns, sequence;
	uint32_t grid[3], block[3], shared, correlation, tid;
	uint32_t record; /* what the tracer asked for when it was launched */
	uint32_t value, source_context, target_context;
	uint8_t kind, copy_kind, source_kind, target_kind, asynchronous, running, consumed, last_of_graph, cooperative;
	int8_t source_device, target_device;
};

/* One launch of an executable graph. */
struct gs_sim_launch {
	struct gs_sim_stream *stream;
	uint32_t left, graph_id, correlation, tid, record;
	uint64_t api_ns, start_ns, end_ns;
};

struct gs_sim_graph {
	uint32_t id, n, room, executable;
	struct gs_sim_op *nodes; /* templates */
};

struct gs_sim_call {
	struct gs_sim_call *outer;
	uint32_t domain, cbid, correlation, tid;
	const char *name, *symbol;
	const void *params;
	void *result;
	struct gs_sim_context *context;
	uint64_t data, begin_ns, end_ns;
};

/* A host thread's wait. */
struct gs_sim_wait {
	struct gs_sim_context *context;
	uint32_t type; /* CUpti_ActivitySynchronizationType */
	uint32_t stream, event, correlation, tid;
	uint64_t begin_ns, end_ns;
};

/* libcupti's side. `launched`, `finished`, `graph_finished` run under the engine's lock: they must not call back. */
struct gs_sim_tracer {
	void (*call)(struct gs_sim_call *call, int exit);
	uint32_t (*launched)(const struct gs_sim_op *op);
	uint32_t (*graph_launched)(const struct gs_sim_launch *launch, uint32_t *nodes); /* nodes: whether to ask for each */
	void (*finished)(const struct gs_sim_op *op);
	void (*graph_finished)(const struct gs_sim_launch *launch);
	void (*waited)(const struct gs_sim_wait *wait);
	void (*resource)(enum gs_sim_resource what, struct gs_sim_context *context, struct gs_sim_stream *stream);
};

struct gs_sim_driver {
	uint32_t size;
	struct gs_sim_tracer *tracer; /* NULL: none */
	uint32_t initialized;         /* cuInit has returned */
	uint64_t (*now)(void);        /* CLOCK_MONOTONIC, or the simulated clock */
	uint64_t (*realtime)(uint64_t at);
	void (*spend)(uint64_t ns);   /* host time of the calling thread */
	void (*call_begin)(struct gs_sim_call *call);
	void (*call_end)(struct gs_sim_call *call);
	uint32_t (*correlation)(void); /* of the call that the calling thread is in */
	void (*progress)(void);        /* what has ended by now is reported */
	void (*running)(void (*visit)(struct gs_sim_op *op)); /* each operation that runs */
	struct gs_sim_context *(*contexts)(void);
	void (*memory)(int slot, int64_t bytes);
	int (*device)(int ordinal, CUuuid *uuid, char name[96], uint64_t *memory); /* 0: there is no such device */
	uint32_t simulated_clock;
	void (*away)(void); /* simulated: the calling thread takes no part until its next sleep */
	int (*sleep_until)(uint64_t deadline, const uint32_t *word, uint32_t value); /* simulated; 1: the word is no longer `value` */
};
struct gs_sim_driver *gs_sim_driver(void);

/* engine.c */
extern struct gs_sim_driver gs_sim_engine;
int gs_sim_engine_usable(void); /* 0 in a child of fork after cuInit */
void gs_sim_engine_start(void);
void gs_sim_lock(void);
void gs_sim_unlock(void);
uint64_t gs_sim_clock(void);
uint32_t gs_sim_tid(void);
struct gs_sim_op *gs_sim_op(struct gs_sim_stream *stream, int kind); /* times and correlation of the current call; lock held */
void gs_sim_enqueue(struct gs_sim_op *op);                         /* lock held; into the graph while capturing */
void gs_sim_graph_launch(struct gs_sim_graph *graph, struct gs_sim_stream *stream);
struct gs_sim_mark *gs_sim_mark(struct gs_sim_stream *stream);     /* of all before; lock held; one reference is the caller's */
void gs_sim_release(struct gs_sim_mark *mark);                     /* lock held */
void gs_sim_await(struct gs_sim_mark **marks, int n, struct gs_sim_wait *wait); /* lock not held; drops the references */
int gs_sim_reached(struct gs_sim_mark *mark);                      /* lock held */
void gs_sim_order_legacy(struct gs_sim_stream *stream);            /* the default stream's rule, before an operation; lock held */
struct gs_sim_context *gs_sim_context_new(int ordinal, int slot, int primary);
struct gs_sim_stream *gs_sim_stream_new(struct gs_sim_context *context, unsigned flags, int priority);

/* clock.c */
uint64_t gs_sim_simulated_now(void);
int gs_sim_sleep_until(uint64_t deadline, const uint32_t *word, uint32_t value);
void gs_sim_simulated_start(void);
void gs_sim_simulated_away(void);

/* load.c: what the node sees of it */
void gs_sim_load_start(int slot);
void gs_sim_load_busy(int slot, uint64_t from_ns, uint64_t to_ns); /* CLOCK_MONOTONIC */
void gs_sim_load_memory(int slot, int64_t bytes);
uint64_t gs_sim_collective(struct gs_sim_op *op, int arriving); /* its end, 0 while ranks are missing */

/* truth.c */
void gs_sim_truth(const struct gs_sim_op *op, int kind);
void gs_sim_truth_launch(const struct gs_sim_launch *launch);
void gs_sim_truth_wait(const struct gs_sim_wait *wait);

#endif
