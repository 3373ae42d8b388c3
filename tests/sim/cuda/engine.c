// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define START_LATENCY_NS 2500 /* from the launching call to the device, at the least */
#define KERNEL_GAP_NS 800     /* between operations of one stream */
#define QUEUE_LIMIT 1024      /* launches a stream takes before the next one waits, as CUDA's */
#define TICK_NS 1000000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct gs_sim_context *contexts;
static struct gs_sim_op *spare;
static uint64_t copy_free[GS_SIM_MAX_DEVICES][2], next_event, n_ops, sequences[8][GS_SIM_MAX_DEVICES];
static uint32_t n_contexts, correlations, pending, meeting;
static pid_t owner;
static __thread struct gs_sim_call *current;
static __thread uint64_t next_duration;
static __thread uint32_t tid;
static uint64_t graph_nodes;

void gs_sim_lock(void) { pthread_mutex_lock(&lock); }
void gs_sim_unlock(void) { pthread_mutex_unlock(&lock); }

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

uint64_t gs_sim_clock(void)
{
	return gs_sim_engine.simulated_clock ? gs_sim_simulated_now() : clock_ns(CLOCK_MONOTONIC);
}

/* The difference is read anew, but kept while it moves by less than a microsecond: operations of a stream must not overlap by the noise of it. */
static uint64_t realtime(uint64_t at)
{
	static uint64_t offset, read_at;
	if (gs_sim_engine.simulated_clock)
		return at + 1700000000000000000ull;
	uint64_t now = clock_ns(CLOCK_MONOTONIC);
	if (!offset || now - read_at > 100000000) {
		uint64_t fresh = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC), old = offset;
		int64_t moved = fresh - old;
		if (!old || moved > 1000 || moved < -1000)
			__atomic_store_n(&offset, fresh, __ATOMIC_RELAXED);
		read_at = now;
	}
	return at + offset;
}

static void spend(uint64_t ns)
{
	if (gs_sim_engine.simulated_clock) {
		gs_sim_sleep_until(gs_sim_clock() + ns, NULL, 0);
		return;
	}
	for (uint64_t end = clock_ns(CLOCK_MONOTONIC) + ns; clock_ns(CLOCK_MONOTONIC) < end;)
		;
}

uint32_t gs_sim_tid(void)
{
	if (!tid)
		tid = gettid();
	return tid;
}

static void call_begin(struct gs_sim_call *call)
{
	call->outer = current;
	call->tid = gs_sim_tid();
	/* one id for a runtime call and the driver calls inside it */
	call->correlation = current ? current->correlation : __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED);
	current = call;
	struct gs_sim_tracer *tracer = __atomic_load_n(&gs_sim_engine.tracer, __ATOMIC_ACQUIRE);
	if (gs_sim_engine.simulated_clock && !call->outer)
		spend(1500);
	call->begin_ns = gs_sim_clock();
	if (tracer)
		tracer->call(call, 0);
}

static void call_end(struct gs_sim_call *call)
{
	struct gs_sim_tracer *tracer = __atomic_load_n(&gs_sim_engine.tracer, __ATOMIC_ACQUIRE);
	call->end_ns = gs_sim_clock();
	if (tracer)
		tracer->call(call, 1);
	current = call->outer;
}

static uint32_t correlation(void) { return current ? current->correlation : 0; }

/* ---- operations ---- */

struct gs_sim_op *gs_sim_op(struct gs_sim_stream *stream, int kind)
{
	struct gs_sim_op *op = spare;
	if (op)
		spare = op->next;
	else if (!(op = malloc(sizeof(*op))))
		abort();
	struct gs_sim_call *outermost = current;
	while (outermost && outermost->outer)
		outermost = outermost->outer;
	uint64_t now = gs_sim_clock();
	*op = (struct gs_sim_op){.stream = stream, .kind = kind, .api_ns = outermost ? outermost->begin_ns : now,
				 .ready_ns = now + START_LATENCY_NS, .correlation = correlation(), .tid = gs_sim_tid()};
	op->source_device = op->target_device = stream->context->ordinal;
	op->duration_ns = next_duration;
	next_duration = 0;
	return op;
}

static void free_op(struct gs_sim_op *op)
{
	op->next = spare;
	spare = op;
}

static double gaussian(uint64_t seed)
{
	double sum = 0; /* of twelve uniform numbers: near enough, and the same everywhere */
	for (int i = 0; i < 12; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		sum += (seed >> 11) * 0x1p-53;
	}
	return sum - 6;
}

static void give_duration(struct gs_sim_op *op)
{
	static const double bytes_per_ns[] = {[CU_MEMORYTYPE_HOST] = 50, [CU_MEMORYTYPE_DEVICE] = 1800};
	if (op->duration_ns)
		return;
	if (op->kind == GS_SIM_KERNEL) {
		double factor = op->function->sigma > 0 ? exp(op->function->sigma * gaussian(n_ops)) : 1;
		op->duration_ns = op->function->duration_ns * factor < 1 ? 1 : op->function->duration_ns * factor;
	} else if (op->kind == GS_SIM_COPY || op->kind == GS_SIM_SET) {
		int host = op->copy_kind == 1 || op->copy_kind == 2, peer = op->copy_kind == 10;
		double rate = host ? bytes_per_ns[CU_MEMORYTYPE_HOST] : peer ? 200 : bytes_per_ns[CU_MEMORYTYPE_DEVICE];
		if (host && (op->source_kind == 1 || op->target_kind == 1)) /* pageable */
			rate = 12;
		op->duration_ns = 1200 + op->bytes / rate;
	}
}

static void append(struct gs_sim_op *op)
{
	struct gs_sim_stream *stream = op->stream;
	op->next = NULL;
	if (stream->tail)
		stream->tail->next = op;
	else
		stream->head = op;
	stream->tail = op;
	stream->depth++;
	n_ops++;
	if (!pending++)
		pthread_cond_signal(&work);
}

static void progress(void);

static void sleep_towards(uint64_t at)
{
	uint64_t now = gs_sim_clock();
	if (gs_sim_engine.simulated_clock) {
		gs_sim_sleep_until(at == ~0ull ? now + 10000 : at, NULL, 0); /* none: it is for another thread to go on */
		return;
	}
	uint64_t length = at > now ? at - now : 0;
	if (length > TICK_NS)
		length = TICK_NS;
	if (length > 30000) { /* what a sleep costs beyond its length */
		struct timespec pause = {0, length - 20000};
		nanosleep(&pause, NULL);
	}
}

static void number_collective(struct gs_sim_op *op)
{
	if (op->kind == GS_SIM_KERNEL && op->function->ranks > 1)
		op->sequence = sequences[op->function->communicator % 8][op->stream->context->slot]++;
}

static void submit(struct gs_sim_op *op)
{
	while (op->stream->depth >= QUEUE_LIMIT) {
		progress();
		if (op->stream->depth < QUEUE_LIMIT)
			break;
		uint64_t next = next_event;
		gs_sim_unlock();
		sleep_towards(next);
		gs_sim_lock();
	}
	give_duration(op);
	number_collective(op);
	append(op);
}

void gs_sim_enqueue(struct gs_sim_op *op)
{
	struct gs_sim_graph *graph = op->stream->capture;
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	if (graph) {
		if (op->kind == GS_SIM_KERNEL || op->kind == GS_SIM_COPY || op->kind == GS_SIM_SET) {
			if (graph->n == graph->room) {
				graph->room = graph->room ? 2 * graph->room : 16;
				graph->nodes = realloc(graph->nodes, graph->room * sizeof(*graph->nodes));
			}
			op->node_id = ++graph_nodes;
			graph->nodes[graph->n++] = *op;
		}
		if (op->mark)
			gs_sim_release(op->mark);
		free_op(op);
		return;
	}
	if (tracer && op->kind != GS_SIM_MARK && op->kind != GS_SIM_WAIT)
		op->record = tracer->launched(op);
	submit(op);
}

void gs_sim_graph_launch(struct gs_sim_graph *graph, struct gs_sim_stream *stream)
{
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	struct gs_sim_op *first = gs_sim_op(stream, GS_SIM_MARK);
	struct gs_sim_launch *launch = calloc(1, sizeof(*launch));
	uint32_t nodes = 0;
	*launch = (struct gs_sim_launch){.stream = stream, .left = graph->n, .graph_id = graph->id, .correlation = first->correlation,
					 .tid = first->tid, .api_ns = first->api_ns};
	if (tracer)
		launch->record = tracer->graph_launched(launch, &nodes);
	for (uint32_t i = 0; i < graph->n; i++) {
		struct gs_sim_op *op = gs_sim_op(stream, graph->nodes[i].kind);
		struct gs_sim_op times = *op;
		*op = graph->nodes[i];
		op->stream = stream;
		op->api_ns = first->api_ns;
		op->ready_ns = times.ready_ns;
		op->correlation = times.correlation;
		op->tid = times.tid;
		op->launch = launch;
		op->record = tracer && nodes ? tracer->launched(op) : 0;
		submit(op);
	}
	free_op(first);
	if (!graph->n)
		free(launch);
}

/* ---- execution ---- */

void gs_sim_release(struct gs_sim_mark *mark)
{
	if (!--mark->references)
		free(mark);
}

static void complete(struct gs_sim_op *op)
{
	struct gs_sim_stream *stream = op->stream;
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	struct gs_sim_launch *launch = op->launch;
	stream->head = op->next;
	if (!stream->head)
		stream->tail = NULL;
	stream->depth--;
	pending--;
	stream->last_end = op->end_ns;
	if (op->kind == GS_SIM_MARK) {
		op->mark->done = 1;
		op->mark->end_ns = op->end_ns;
	}
	if (op->mark)
		gs_sim_release(op->mark);
	if (op->kind < GS_SIM_MARK) {
		gs_sim_load_busy(stream->context->slot, op->accounted_ns > op->start_ns ? op->accounted_ns : op->start_ns, op->end_ns);
		gs_sim_truth(op, op->kind);
		if (tracer && op->record && !op->consumed)
			tracer->finished(op);
	}
	if (launch) {
		launch->start_ns = launch->start_ns ? launch->start_ns : op->start_ns;
		if (!--launch->left) {
			launch->end_ns = op->end_ns;
			gs_sim_truth_launch(launch);
			if (tracer && launch->record)
				tracer->graph_finished(launch);
			free(launch);
		}
	}
	free_op(op);
}

static void expect(uint64_t at)
{
	if (at < next_event)
		next_event = at;
}

/* 1: it is under way (its end may not be known yet). */
static int begin(struct gs_sim_op *op, uint64_t from, uint64_t now)
{
	uint64_t *engine = NULL;
	if (op->kind == GS_SIM_COPY && (op->copy_kind == 1 || op->copy_kind == 2))
		engine = &copy_free[op->stream->context->slot][op->copy_kind - 1];
	if (engine && *engine > from)
		from = *engine;
	if (from > now) {
		expect(from);
		return 0;
	}
	op->start_ns = from;
	op->running = 1;
	if (op->kind == GS_SIM_KERNEL && op->function->ranks > 1)
		op->end_ns = gs_sim_collective(op, 1);
	else
		op->end_ns = from + op->duration_ns;
	if (engine)
		*engine = op->end_ns;
	return 1;
}

static int step(struct gs_sim_stream *stream, uint64_t now)
{
	struct gs_sim_op *op = stream->head;
	if (!op)
		return 0;
	uint64_t from = stream->last_end > op->ready_ns ? stream->last_end : op->ready_ns;
	if (op->kind == GS_SIM_WAIT) {
		if (!op->mark->done)
			return 0;
		op->end_ns = op->mark->end_ns > stream->last_end ? op->mark->end_ns : stream->last_end;
	} else if (op->kind == GS_SIM_MARK) {
		op->end_ns = stream->last_end > op->ready_ns - START_LATENCY_NS ? stream->last_end : op->ready_ns - START_LATENCY_NS;
	} else if (!op->running) {
		uint64_t gap = stream->last_end + KERNEL_GAP_NS;
		return begin(op, from > gap ? from : gap, now);
	} else if (!op->end_ns) {
		op->end_ns = gs_sim_collective(op, 0);
		if (!op->end_ns) { /* ranks are missing: it spins, and the device is busy */
			meeting = 1;
			if (now - op->accounted_ns > TICK_NS) {
				gs_sim_load_busy(stream->context->slot, op->accounted_ns ? op->accounted_ns : op->start_ns, now);
				op->accounted_ns = now;
			}
			return 0;
		}
	}
	if (op->end_ns > now) {
		expect(op->end_ns);
		return 0;
	}
	complete(op);
	return 1;
}

static void progress(void)
{
	uint64_t now = gs_sim_clock();
	int moved = 1;
	while (moved) {
		next_event = ~0ull;
		moved = meeting = 0;
		for (struct gs_sim_context *context = contexts; context; context = context->next)
			for (struct gs_sim_stream *stream = context->streams; stream; stream = stream->next)
				while (step(stream, now))
					moved = 1;
	}
	if (meeting)
		expect(now + 100000);
}

static void progress_now(void)
{
	gs_sim_lock();
	progress();
	gs_sim_unlock();
}

/* Reports what has ended, in nobody's call; who waits does not wait for this thread. */
static void *execute(void *unused)
{
	(void)unused;
	gs_sim_lock();
	for (;;) {
		while (!pending)
			pthread_cond_wait(&work, &lock);
		progress();
		uint64_t now = gs_sim_clock(), length = next_event > now + TICK_NS ? next_event - now : TICK_NS;
		struct timespec pause = {0, length > 5 * TICK_NS ? 5 * TICK_NS : length};
		gs_sim_unlock();
		nanosleep(&pause, NULL);
		gs_sim_lock();
	}
	return NULL;
}

struct gs_sim_mark *gs_sim_mark(struct gs_sim_stream *stream)
{
	struct gs_sim_mark *mark = calloc(1, sizeof(*mark));
	if (!stream->head && !stream->capture) {
		uint64_t now = gs_sim_clock();
		mark->references = mark->done = 1;
		mark->end_ns = now > stream->last_end ? now : stream->last_end;
		return mark;
	}
	uint64_t kept = next_duration; /* it is for the next real operation */
	struct gs_sim_op *op = gs_sim_op(stream, GS_SIM_MARK);
	next_duration = kept;
	mark->references = 2;
	op->mark = mark;
	gs_sim_enqueue(op);
	return mark;
}

int gs_sim_reached(struct gs_sim_mark *mark)
{
	if (!mark->done)
		progress();
	return mark->done;
}

static int all_reached(struct gs_sim_mark **marks, int n)
{
	for (int i = 0; i < n; i++)
		if (!gs_sim_reached(marks[i]))
			return 0;
	return 1;
}

void gs_sim_await(struct gs_sim_mark **marks, int n, struct gs_sim_wait *wait)
{
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	wait->begin_ns = gs_sim_clock();
	wait->correlation = correlation();
	wait->tid = gs_sim_tid();
	gs_sim_lock();
	while (!all_reached(marks, n)) {
		uint64_t next = next_event;
		gs_sim_unlock();
		sleep_towards(next);
		gs_sim_lock();
	}
	for (int i = 0; i < n; i++)
		gs_sim_release(marks[i]);
	wait->end_ns = gs_sim_clock();
	gs_sim_truth_wait(wait);
	gs_sim_unlock();
	if (tracer)
		tracer->waited(wait);
}

static void wait_for(struct gs_sim_stream *stream, struct gs_sim_stream *other)
{
	if (!other->head || other->capture)
		return;
	struct gs_sim_mark *mark = gs_sim_mark(other);
	uint64_t kept = next_duration;
	struct gs_sim_op *op = gs_sim_op(stream, GS_SIM_WAIT);
	next_duration = kept;
	op->mark = mark;
	submit(op);
}

/* The default stream waits for all blocking streams, and they for it. */
void gs_sim_order_legacy(struct gs_sim_stream *stream)
{
	struct gs_sim_context *context = stream->context;
	if (stream->capture || (stream->flags & CU_STREAM_NON_BLOCKING))
		return;
	if (stream != context->legacy) {
		wait_for(stream, context->legacy);
		return;
	}
	for (struct gs_sim_stream *other = context->streams; other; other = other->next)
		if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING))
			wait_for(stream, other);
}

/* ---- contexts, streams, start ---- */

struct gs_sim_stream *gs_sim_stream_new(struct gs_sim_context *context, unsigned flags, int priority)
{
	struct gs_sim_stream *stream = NULL;
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	gs_sim_lock();
	for (stream = context->streams; stream && !(stream->dead && !stream->head); stream = stream->next)
		;
	if (!stream) {
		stream = calloc(1, sizeof(*stream));
		stream->context = context;
		stream->next = context->streams;
		context->streams = stream;
	}
	stream->dead = 0;
	stream->capture = NULL;
	stream->flags = flags;
	stream->priority = priority;
	stream->id = context->next_stream++;
	if (stream->id == 7)
		context->next_stream = 13; /* as real ones are numbered */
	gs_sim_unlock();
	if (tracer && stream->id != 7)
		tracer->resource(GS_SIM_STREAM_CREATED, context, stream);
	return stream;
}

struct gs_sim_context *gs_sim_context_new(int ordinal, int slot, int primary)
{
	struct gs_sim_tracer *tracer = gs_sim_engine.tracer;
	struct gs_sim_context *context = calloc(1, sizeof(*context));
	*context = (struct gs_sim_context){.ordinal = ordinal, .slot = slot, .primary = primary, .next_stream = 7};
	gs_sim_lock();
	context->id = ++n_contexts;
	gs_sim_unlock();
	context->legacy = gs_sim_stream_new(context, 0, 0);
	gs_sim_lock();
	context->next = contexts;
	contexts = context;
	gs_sim_unlock();
	gs_sim_load_start(slot);
	if (tracer)
		tracer->resource(GS_SIM_CONTEXT_CREATED, context, context->legacy);
	return context;
}

static struct gs_sim_context *all_contexts(void) { return contexts; }

static void running(void (*visit)(struct gs_sim_op *))
{
	gs_sim_lock();
	progress();
	for (struct gs_sim_context *context = contexts; context; context = context->next)
		for (struct gs_sim_stream *stream = context->streams; stream; stream = stream->next)
			if (stream->head && stream->head->running)
				visit(stream->head);
	gs_sim_unlock();
}

static void report_unfinished(void)
{
	if (getpid() != owner || pthread_mutex_trylock(&lock))
		return;
	progress();
	for (struct gs_sim_context *context = contexts; context; context = context->next)
		for (struct gs_sim_stream *stream = context->streams; stream; stream = stream->next)
			for (struct gs_sim_op *op = stream->head; op; op = op->next)
				if (op->kind < GS_SIM_MARK) {
					op->end_ns = 0;
					gs_sim_truth(op, op->kind);
				}
	gs_sim_unlock();
}

int gs_sim_engine_usable(void) { return !owner || owner == getpid(); }

void gs_sim_engine_start(void)
{
	const char *clock = getenv("SIM_CLOCK");
	pthread_t thread;
	owner = getpid();
	gs_sim_engine.simulated_clock = clock && strcmp(clock, "simulated") == 0;
	if (gs_sim_engine.simulated_clock)
		gs_sim_simulated_start();
	atexit(report_unfinished);
	if (!gs_sim_engine.simulated_clock) {
		pthread_create(&thread, NULL, execute, NULL);
		pthread_setname_np(thread, "sim-device");
		pthread_detach(thread);
	}
}

struct gs_sim_driver gs_sim_engine = {
	.size = sizeof(struct gs_sim_driver), .now = gs_sim_clock, .realtime = realtime, .spend = spend, .call_begin = call_begin,
	.call_end = call_end, .correlation = correlation, .progress = progress_now, .running = running,
	.contexts = all_contexts, .memory = gs_sim_load_memory, .sleep_until = gs_sim_sleep_until,
	.away = gs_sim_simulated_away,
};

struct gs_sim_driver *gs_sim_driver(void) { return &gs_sim_engine; }

/* ---- for workloads (simulated.h) ---- */

void simNextDuration(uint64_t ns) { next_duration = ns; }
uint64_t simNow(void) { return gs_sim_clock(); }
void simAway(void) { gs_sim_simulated_away(); }

void simAdvance(uint64_t ns)
{
	if (!gs_sim_engine.simulated_clock) {
		struct timespec length = {ns / 1000000000, ns % 1000000000};
		nanosleep(&length, NULL);
		return;
	}
	for (uint64_t end = gs_sim_clock() + ns;;) {
		progress_now();
		if (next_event > end || gs_sim_clock() >= end) {
			gs_sim_sleep_until(end, NULL, 0);
			progress_now();
			return;
		}
		sleep_towards(next_event);
	}
}
