/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a window: its books, its place in time, the next one.
 *
 * Books. `produced` is what the perf counters say; what the BPF program saw is idle + filtered + its drops + what it put into
 * the ring. The difference is kernel_skipped. Reading both races with samples in flight: a period may have passed whose
 * sample is still running, so a difference counts only once the next window still shows it. Books therefore close exactly in
 * each window, and their sum lags the perf counters by what is in flight, nothing after the last window.
 * The perf counts follow the scheduler's clock and the timers CLOCK_MONOTONIC; they drift apart by parts per million, so the
 * difference can also be below zero for a while: then nothing was skipped. */
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

/* Moves what the kernel counted since the last window into the books. */
static void book_kernel(struct gs_core *core, struct gs_books *books, int last)
{
	uint64_t produced = gs_timers_produced(&core->timers); /* before the counters: what it misses, the next window sees */
	struct gs_cpu_counters now;

	gs_kernel_counters(&core->kernel, &now);

	int64_t seen = (int64_t)(produced - now.idle - now.filtered - now.scratch_busy - now.ring_full - now.delivered);
	int64_t sure = last || seen < core->skipped_seen ? seen : core->skipped_seen;

	books->idle += now.idle - core->booked.idle;
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

void gs_end_window(struct gs_core *core, int from_kernel, int last)
{
	struct gs_epoch *e = core->epoch;

	if (from_kernel && !(core->flags & GS_OPTION_NO_KERNEL))
		book_kernel(core, &core->books, last);
	close_books(&core->books);
	learn_files(core);

	struct gs_ended ended = {
		.epoch = e,
		.rows = core->rows,
		.books = core->books,
		.start_unix = start_unix(core->window_start),
		.duration = core->window_end - core->window_start,
		.n_frames = e->n_frames,
		.n_stacks = e->n_stacks,
		.n_processes = e->n_processes,
		.n_threads = e->n_threads,
	};

	e->windows++;
	core->windows++;
	gs_index_free(&ended.rows.index);
	gs_queue_push(&core->queue, &ended);
	memset(&core->rows, 0, sizeof(core->rows));
	core->rows.limit = ended.rows.limit;
	memset(&core->books, 0, sizeof(core->books));
	if (gs_epoch_nearly_full(e) || (core->mappings && gs_mappings_wants_epoch(core->mappings)))
		next_epoch(core);
	next_window(core);
	pthread_cond_broadcast(&core->ready);
}
