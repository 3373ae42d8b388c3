/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a window: its books, its place in time, the next one.
 *
 * Books. `produced` is what the perf counters say; what the BPF program saw is idle + filtered + its drops + what it put into
 * the ring. The difference is kernel_skipped, less the periods without a sample in which the CPU was idle by /proc/stat: a
 * hypervisor lets a halted CPU sleep past its timers, and on some guests the kernel never runs the sampler on an idle CPU
 * although its timer fires (seen on CPU 1 of a Firecracker guest; perf record loses the same samples). Those are idle.
 * Reading both sides races with samples in flight, so a difference counts only once the next window still shows it. Books close
 * exactly in each window; their sum lags the perf counters by what is open, by nothing after the last window. The perf
 * counts follow the scheduler's clock and the timers CLOCK_MONOTONIC; they drift apart by parts per million, so the
 * difference can be below zero for a while: then nothing was skipped. */
#include <string.h>
#include <time.h>

#include "state.h"

#define MAX_SLEW 1000000LL  /* ns a window; windows creep to whole seconds of the wall clock, where charts have their steps */
#define SNAP 2000000LL      /* within this of a whole second, a window is said to start there */

static uint64_t unix_ahead(void) /* CLOCK_REALTIME - CLOCK_MONOTONIC */
{
	struct timespec real, mono;

	clock_gettime(CLOCK_MONOTONIC, &mono);
	clock_gettime(CLOCK_REALTIME, &real);
	return (real.tv_sec - mono.tv_sec) * GS_SECOND + real.tv_nsec - mono.tv_nsec;
}

/* Distance to the nearest whole second of the wall clock: within +-0.5 s. */
static int64_t off_second(uint64_t time_unix)
{
	int64_t rest = (int64_t)(time_unix % GS_SECOND);

	return rest > (int64_t)GS_SECOND / 2 ? rest - (int64_t)GS_SECOND : rest;
}

void gs_first_window(struct gs_core *core, uint64_t now)
{
	uint64_t rest = (now + unix_ahead()) % GS_SECOND, first = GS_SECOND - rest;

	core->window_start = now;
	core->window_end = now + (first < GS_SECOND / 5 ? first + GS_SECOND : first);
}

static void next_window(struct gs_core *core)
{
	int64_t off = off_second(core->window_end + GS_SECOND + unix_ahead());
	int64_t slew = off > MAX_SLEW ? MAX_SLEW : off < -MAX_SLEW ? -MAX_SLEW : off;

	core->window_start = core->window_end;
	core->window_end += GS_SECOND - slew;
}

static int64_t start_unix(uint64_t window_start)
{
	uint64_t start = window_start + unix_ahead();
	int64_t off = off_second(start);

	return (int64_t)start - (off <= SNAP && off >= -SNAP ? off : 0);
}

/* Periods of a CPU that had no sample: those of its idle time that its idle samples do not cover. */
static uint64_t idle_without_sample(struct gs_core *core, int cpu, uint64_t idle_ns, int64_t missing)
{
	int64_t idle = (int64_t)((idle_ns - core->idle_base[cpu]) / core->timers.period) - (int64_t)core->kernel.per_cpu[cpu].idle;

	if (idle > missing)
		idle = missing;
	return idle > (int64_t)core->idle_extra[cpu] ? idle : core->idle_extra[cpu]; /* what is booked stays booked */
}

/* What the perf counters say beyond what the sampler saw: fills in each CPU's share of idle, returns the rest. Reads /proc/stat
 * (1 ms with 128 CPUs) only when more is missing than one in a hundred of this window's busy samples: on a machine that idles a
 * few periods are no small share of what ran (they showed as a tenth lost). */
static int64_t skipped(struct gs_core *core, const uint64_t *produced)
{
	int n = core->timers.n_cpus;
	uint64_t idle[n];
	int64_t missing[n], sum = 0, rest = 0, busy = (int64_t)(core->booked.idle - core->booked.entered);

	for (int cpu = 0; cpu < n; cpu++) {
		missing[cpu] = (int64_t)(produced[cpu] - core->kernel.per_cpu[cpu].entered);
		rest += missing[cpu] - (int64_t)core->idle_extra[cpu];
		busy += (int64_t)(core->kernel.per_cpu[cpu].entered - core->kernel.per_cpu[cpu].idle);
	}
	if (rest - core->skipped_booked > busy / 100 && !gs_idle_times(idle, n))
		for (int cpu = 0; cpu < n; cpu++)
			core->idle_extra[cpu] = idle_without_sample(core, cpu, idle[cpu], missing[cpu]);
	for (int cpu = 0; cpu < n; cpu++)
		sum += missing[cpu] - (int64_t)core->idle_extra[cpu];
	return sum;
}

static uint64_t total(const uint64_t *of, int n)
{
	uint64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += of[i];
	return sum;
}

/* Moves what the kernel counted since the last window into the books. */
static void book_kernel(struct gs_core *core, struct gs_books *books, int last)
{
	int n = core->timers.n_cpus;
	uint64_t produced[n], extra = total(core->idle_extra, n);
	struct gs_cpu_counters now;

	for (int cpu = 0; cpu < n; cpu++)
		produced[cpu] = gs_timers_produced(&core->timers, cpu); /* first: what the counters say more, the next window sees */
	if (gs_kernel_counters(&core->kernel, &now))
		return; /* the next window books it */

	int64_t seen = skipped(core, produced);
	int64_t sure = last || seen < core->skipped_seen ? seen : core->skipped_seen;

	books->idle += now.idle - core->booked.idle + total(core->idle_extra, n) - extra;
	books->filtered += now.filtered - core->booked.filtered;
	books->drops[GS_DROP_scratch_busy] += now.scratch_busy - core->booked.scratch_busy;
	books->drops[GS_DROP_ring_full] += now.ring_full - core->booked.ring_full;
	if (sure > core->skipped_booked) {
		books->drops[GS_DROP_kernel_skipped] += sure - core->skipped_booked;
		core->skipped_booked = sure;
	}
	core->skipped_seen = seen;
	core->booked = now;
}

static void close_books(struct gs_books *books)
{
	books->produced = books->idle + books->filtered + books->delivered;
	for (int i = 0; i < GS_DROP_COUNT; i++)
		books->produced += books->drops[i];
}

static void learn_files(struct gs_core *core)
{
	struct gs_epoch *e = core->epoch;

	while (core->mappings) {
		if (gs_grow((void **)&e->files, &e->room_files, e->n_files + 1ULL, UINT32_MAX, sizeof(*e->files)) ||
		    !gs_mappings_take_file(core->mappings, &e->files[e->n_files]))
			return; /* without memory the rest waits for the next window */
		e->n_files++;
	}
}

static void next_epoch(struct gs_core *core)
{
	struct gs_epoch *next = gs_epoch_new(core->epoch->number + 1, &core->limits);

	if (!next)
		return; /* stays full; tried again at the next window */
	if (!--core->epoch->windows)
		gs_epoch_free(core->epoch);
	next->windows = 1;
	core->epoch = next;
	if (core->mappings)
		gs_mappings_new_epoch(core->mappings);
}

/* Rows and books go into the queue, and begin anew. */
static void queue_window(struct gs_core *core, enum gs_sample_type type, struct gs_window_rows *rows, struct gs_books *books)
{
	struct gs_epoch *e = core->epoch;
	struct gs_ended ended = {
		.epoch = e,
		.rows = *rows,
		.books = *books,
		.type = type,
		.start_unix = start_unix(core->window_start),
		.duration = core->window_end - core->window_start,
		.n_frames = e->n_frames,
		.n_stacks = e->n_stacks,
		.n_processes = e->n_processes,
		.n_threads = e->n_threads,
	};

	e->windows++;
	gs_index_free(&ended.rows.index);
	gs_queue_push(&core->queue, &ended);
	memset(rows, 0, sizeof(*rows));
	rows->limit = ended.rows.limit;
	memset(books, 0, sizeof(*books));
}

void gs_end_window(struct gs_core *core, int from_kernel, int last)
{
	struct gs_epoch *e = core->epoch;

	if (from_kernel && !(core->flags & GS_OPTION_NO_KERNEL))
		book_kernel(core, &core->books, last);
	close_books(&core->books);
	learn_files(core);

	queue_window(core, GS_TYPE_CPU, &core->rows, &core->books);
	if (core->waits) {
		gs_waits_end_window(core, from_kernel, last);
		close_books(&core->waits->books);
		queue_window(core, GS_TYPE_OFF_CPU, &core->waits->rows, &core->waits->books);
	}
	if (core->launches) {
		struct gs_books none = { 0 };

		queue_window(core, GS_TYPE_LAUNCH, &core->launches->rows, &none);
		queue_window(core, GS_TYPE_MOMENT, &core->launches->moments, &none);
	}
	core->windows++;
	if (gs_epoch_nearly_full(e) || (core->mappings && gs_mappings_wants_epoch(core->mappings)))
		next_epoch(core);
	next_window(core);
	pthread_cond_broadcast(&core->ready);
}
