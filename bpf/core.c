/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a core, and what Python asks of it. */
#include "core.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "children.h"
#include "error.h"
#include "state.h"

#define MAX_HZ 20000

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
	return value ? value : otherwise;
}

static int check(const struct gs_options *options, struct gs_error *error)
{
	if (options->size != sizeof(*options))
		return gs_fail(error, GS_FAULT_argument, EINVAL, "options of %u bytes given, %zu wanted: core.so and loader.py differ",
			       options->size, sizeof(*options));
	if (!options->hz || options->hz > MAX_HZ)
		return gs_fail(error, GS_FAULT_argument, EINVAL, "%u Hz is not between 1 and %u", options->hz, MAX_HZ);
	if ((options->flags & GS_OPTION_FILTER) && !options->n_pids)
		return gs_fail(error, GS_FAULT_argument, EINVAL, "a PID filter without PIDs");
	return 0;
}

static void set_limits(struct gs_core *core, const struct gs_options *options)
{
	core->limits.frames = or_default(options->max_frames, 65536);
	core->limits.stacks = or_default(options->max_stacks, 32768);
	core->limits.stack_frames = core->limits.stacks > UINT32_MAX / 64 ? UINT32_MAX : core->limits.stacks * 64;
	core->limits.threads = or_default(options->max_threads, 32768);
	core->limits.processes = core->limits.threads;
	core->rows.limit = or_default(options->max_rows, 65536);
	core->queue.size = or_default(options->max_windows, 16) *
			   (1 + !!(options->flags & GS_OPTION_OFF_CPU) + 2 * !!(options->flags & GS_OPTION_LAUNCHES));
	core->queue.max_epochs = 3;
}

static int open_tables(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	set_limits(core, options);
	core->epoch = gs_epoch_new(1, &core->limits);
	core->queue.ended = calloc(core->queue.size, sizeof(*core->queue.ended));
	if (!core->epoch || !core->queue.ended)
		return gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for the tables");
	core->epoch->windows = 1;
	return 0;
}

static int open_unwind_tables(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	const struct gs_kernel *k = &core->kernel;
	struct gs_tables_options wanted = {
		.tables_fd = k->tables,
		.words_fd = k->words,
		.rules_fd = k->rules,
		.max_tables = k->n_tables,
		.max_words = k->n_words,
		.max_rules = k->n_rules,
		.build_share = options->unwind_share,
	};

	core->tables = gs_tables_open(&wanted);
	return core->tables ? 0 : gs_fail(error, GS_FAULT_memory, errno, "unwind tables: %s", strerror(errno));
}

static int open_mappings(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	struct gs_mappings_options wanted = {
		.proc_root = options->proc_root,
		.procs_fd = core->kernel.procs,
		.mappings_fd = core->kernel.mappings,
		.mapping_rows = core->kernel.mapping_rows,
		.max_processes = core->kernel.n_procs,
		.pythons_fd = core->kernel.pythons,
		.tables = core->tables,
	};

	core->mappings = gs_mappings_open(&wanted);
	return core->mappings ? 0 : gs_fail(error, GS_FAULT_memory, errno, "mapping tables: %s", strerror(errno));
}

static int on_record(void *core, void *data, size_t length)
{
	gs_record(core, data, length);
	return 0;
}

static int watch_descriptor(int epoll, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

/* The ring is edge-triggered: a sample that asks for no wake-up must not cause one because the ring holds something. */
static int open_events(struct gs_core *core, struct gs_error *error)
{
	core->epoll = epoll_create1(EPOLL_CLOEXEC);
	core->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	core->stop_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (core->epoll < 0 || core->timer < 0 || core->stop_event < 0 || watch_descriptor(core->epoll, core->timer, EPOLLIN) ||
	    watch_descriptor(core->epoll, core->stop_event, EPOLLIN) ||
	    watch_descriptor(core->epoll, core->kernel.ring, EPOLLIN | EPOLLET))
		return gs_fail(error, GS_FAULT_thread, errno, "epoll, timerfd and eventfd: %s", strerror(errno));
	return 0;
}

static int open_kernel_side(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	if (gs_kernel_open(&core->kernel, options, error) || gs_watch(&core->kernel, options, error) ||
	    open_unwind_tables(core, options, error) || open_mappings(core, options, error))
		return -1;
	core->idle_base = calloc(core->kernel.n_cpus, sizeof(uint64_t));
	core->idle_extra = calloc(core->kernel.n_cpus, sizeof(uint64_t));
	if (!core->idle_base || !core->idle_extra)
		return gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for %d CPUs", core->kernel.n_cpus);
	core->ring = ring_buffer__new(core->kernel.ring, on_record, core, NULL);

	long failed = libbpf_get_error(core->ring);

	if (failed) {
		core->ring = NULL;
		return gs_fail(error, GS_FAULT_memory, -(int)failed, "the ring buffer could not be mapped: %s", strerror(-(int)failed));
	}
	return open_events(core, error);
}

/* After the sampler's: the drain takes mappings from both rings before it shows what comes from either. */
static int open_waits(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	if (!(options->flags & GS_OPTION_OFF_CPU))
		return 0;
	core->waits = gs_waits_open(core, options, error);
	if (!core->waits || (options->flags & GS_OPTION_NO_KERNEL))
		return core->waits ? 0 : -1;
	if (ring_buffer__add(core->ring, core->waits->kernel.ring, on_record, core) ||
	    watch_descriptor(core->epoll, core->waits->kernel.ring, EPOLLIN | EPOLLET))
		return gs_fail(error, GS_FAULT_memory, errno, "the ring buffer of waits could not be mapped: %s", strerror(errno));
	return 0;
}

static int open_launches(struct gs_core *core, const struct gs_options *options, struct gs_error *error)
{
	if (!(options->flags & GS_OPTION_LAUNCHES))
		return 0;
	core->launches = gs_launches_open(core, options, error);
	if (!core->launches || (options->flags & GS_OPTION_NO_KERNEL))
		return core->launches ? 0 : -1;
	if (ring_buffer__add(core->ring, core->launches->ring, on_record, core) ||
	    watch_descriptor(core->epoll, core->launches->ring, EPOLLIN | EPOLLET))
		return gs_fail(error, GS_FAULT_memory, errno, "the ring buffer of launches could not be mapped: %s", strerror(errno));
	return 0;
}

struct gs_core *gs_core_open(const struct gs_options *options, struct gs_error *error)
{
	struct gs_core *core;

	memset(error, 0, sizeof(*error));
	if (check(options, error))
		return NULL;
	core = calloc(1, sizeof(*core));
	if (!core) {
		gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory");
		return NULL;
	}
	core->flags = options->flags;
	core->hz = options->hz;
	core->epoll = core->timer = core->stop_event = -1;
	core->kernel.stats = core->kernel.tracepoints[0] = core->kernel.tracepoints[1] = -1;
	core->timers.period = gs_period(options->hz);
	pthread_mutex_init(&core->lock, NULL);

	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&core->ready, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (open_tables(core, options, error) ||
	    (!(options->flags & GS_OPTION_NO_KERNEL) && open_kernel_side(core, options, error)) || open_waits(core, options, error) ||
	    open_launches(core, options, error)) {
		gs_core_close(core);
		return NULL;
	}
	gs_first_window(core, gs_now());
	return core;
}

int gs_core_start(struct gs_core *core, struct gs_error *error)
{
	memset(error, 0, sizeof(*error));
	if (core->started || (core->flags & GS_OPTION_NO_KERNEL))
		return gs_fail(error, GS_FAULT_argument, EALREADY, "this core cannot be started%s", core->started ? " twice" : "");
	gs_first_window(core, gs_now());
	gs_idle_times(core->idle_base, core->kernel.n_cpus);
	if (gs_timers_open(&core->timers, core->kernel.profile, core->hz, error) || (core->waits && gs_waits_start(core->waits, error))) {
		gs_timers_close(&core->timers);
		return -1;
	}

	int failed = pthread_create(&core->thread, NULL, gs_drain_thread, core);

	if (failed) {
		gs_timers_close(&core->timers);
		return gs_fail(error, GS_FAULT_thread, failed, "pthread_create: %s", strerror(failed));
	}
	core->started = 1;
	return 0;
}

void gs_core_stop(struct gs_core *core)
{
	uint64_t one = 1;

	if (core->started && !core->stopping) {
		__atomic_store_n(&core->stopping, 1, __ATOMIC_RELEASE);
		if (write(core->stop_event, &one, sizeof(one)) == sizeof(one))
			pthread_join(core->thread, NULL);
	}
	pthread_mutex_lock(&core->lock);
	core->stopped = 1;
	pthread_cond_broadcast(&core->ready);
	pthread_mutex_unlock(&core->lock);
}

static void close_descriptor(int fd)
{
	if (fd >= 0)
		close(fd);
}

void gs_core_close(struct gs_core *core)
{
	if (!core)
		return;
	gs_core_stop(core);
	gs_timers_close(&core->timers);
	ring_buffer__free(core->ring);
	gs_mappings_close(core->mappings);
	gs_tables_close(core->tables);
	gs_waits_close(core->waits);
	gs_launches_close(core->launches);
	gs_kernel_close(&core->kernel);
	close_descriptor(core->epoll);
	close_descriptor(core->timer);
	close_descriptor(core->stop_event);
	gs_queue_free(&core->queue);
	gs_window_rows_free(&core->rows);
	gs_epoch_free(core->epoch);
	free(core->idle_base);
	free(core->idle_extra);
	pthread_cond_destroy(&core->ready);
	pthread_mutex_destroy(&core->lock);
	free(core);
}

/* Each new process brings what /proc said when its id was given. One that still goes by that id may be known better by now:
 * right after exec the listing, and with it the command line, can still be that of the program before. */
static void refresh_details(struct gs_core *core, struct gs_window *window)
{
	for (uint32_t i = 0; core->mappings && window->epoch == core->epoch->number && i < window->n_processes; i++) {
		const struct gs_process_record *p = &window->processes[i];

		if (gs_epoch_find_process(core->epoch, p->tgid, p->start_boottime) != p->process_id)
			continue;

		uint32_t length = gs_read_compact_details(core, p->tgid, p->start_boottime);

		if (length && !core->details.gone)
			gs_window_details(window, i, &core->details, length);
	}
}

int gs_core_take(struct gs_core *core, uint32_t timeout_ms, struct gs_window *out)
{
	uint64_t until = gs_now() + timeout_ms * 1000000ULL;
	struct timespec deadline = { until / GS_SECOND, until % GS_SECOND };
	int waited = 0;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&core->lock);
	while (!core->queue.n && !core->stopped && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&core->ready, &core->lock, &deadline);

	int popped = gs_queue_pop(&core->queue, out), ended = !core->queue.n && core->stopped;

	if (popped == 1) {
		out->period = out->sample_type == GS_TYPE_CPU ? core->timers.period : 1; /* values of waits are ns */
		refresh_details(core, out);
	}
	pthread_mutex_unlock(&core->lock);
	return popped == 1 ? 1 : ended ? -1 : 0;
}

static const char *const names[] = {
#define X(name, text) #name,
	GS_COUNTERS(X)
#undef X
};

const char *gs_core_counter_name(uint32_t i)
{
	if (i < GS_COUNTER_COUNT)
		return names[i];
	i -= GS_COUNTER_COUNT;
	return i < GS_MAPPING_COUNTER_COUNT ? gs_mapping_counter_name(i) : gs_table_counter_name(i - GS_MAPPING_COUNTER_COUNT);
}

static void count_kernel(struct gs_core *core, uint64_t *c)
{
	struct gs_cpu_counters now = { 0 };

	if (core->flags & GS_OPTION_NO_KERNEL)
		return;

	struct gs_run_times times = gs_run_times(core->kernel.object, "profile");

	gs_kernel_counters(&core->kernel, &now);
	c[GS_COUNTER_bpf_time_ns] = times.time_ns;
	c[GS_COUNTER_bpf_runs] = times.runs;
	c[GS_COUNTER_bpf_map_bytes] = core->kernel.map_bytes;
	c[GS_COUNTER_verified_instructions] = times.verified;
	c[GS_COUNTER_cpus] = core->timers.n_open;
	c[GS_COUNTER_entered] = now.entered;
	c[GS_COUNTER_user_frames] = now.frames;
	c[GS_COUNTER_frames_guessed] = now.guessed;
	c[GS_COUNTER_scans_failed] = now.guess_failed;
	c[GS_COUNTER_wakeups] = now.wakeups;
	c[GS_COUNTER_watch_full] = now.watch_full;
}

static void count_waits(struct gs_waits *w, uint64_t *c)
{
	struct gs_run_times times = gs_run_times(w->kernel.object, "off_cpu");
	struct gs_wait_counters now = { 0 };

	if (w->kernel.object)
		gs_offcpu_counters(&w->kernel, &now);
	c[GS_COUNTER_bpf_time_ns] += times.time_ns;
	c[GS_COUNTER_bpf_map_bytes] += w->kernel.map_bytes;
	c[GS_COUNTER_verified_instructions] += times.verified;
	c[GS_COUNTER_off_cpu_time_ns] = times.time_ns;
	c[GS_COUNTER_off_cpu_runs] = times.runs;
	c[GS_COUNTER_waits_brief] = now.brief;
	c[GS_COUNTER_waits_ended] = now.ended;
	c[GS_COUNTER_waits_walked] = now.walked;
	c[GS_COUNTER_waits_unwalked] = now.unwalked;
	c[GS_COUNTER_waits_stack_lost] = now.stack_lost;
	c[GS_COUNTER_waits_scratch_busy] = now.scratch_busy;
	c[GS_COUNTER_waits_came_unseen] = now.came_unseen;
	c[GS_COUNTER_waits_left_unseen] = now.left_unseen;
	c[GS_COUNTER_waits_shown] = w->shown;
	c[GS_COUNTER_waits_by_site] = w->by_site;
	c[GS_COUNTER_waits_without_stack] = w->without_stack;
	c[GS_COUNTER_waiting_threads] = w->n;
	c[GS_COUNTER_waiting_bytes] = w->bytes;
}

static void count_launches(struct gs_launches *l, uint64_t *c)
{
	struct gs_run_times times = gs_run_times(l->object, "launch");
	struct gs_launch_counters now = { 0 };

	gs_launches_counters(l, &now);
	c[GS_COUNTER_bpf_time_ns] += times.time_ns;
	c[GS_COUNTER_bpf_map_bytes] += l->map_bytes;
	c[GS_COUNTER_verified_instructions] += times.verified;
	c[GS_COUNTER_launch_time_ns] = times.time_ns;
	c[GS_COUNTER_launches_entered] = now.entered;
	c[GS_COUNTER_launches_filtered] = now.filtered;
	c[GS_COUNTER_launches_walked] = now.walked;
	c[GS_COUNTER_launches_scratch_busy] = now.scratch_busy;
	c[GS_COUNTER_launches_ring_full] = now.ring_full;
	c[GS_COUNTER_launches_lost] = l->lost;
	c[GS_COUNTER_moments_lost] = l->moments_lost;
}

static void count_core(struct gs_core *core, uint64_t *c)
{
	c[GS_COUNTER_delivered] = core->delivered;
	c[GS_COUNTER_replays] = core->replays;
	c[GS_COUNTER_replays_complete] = core->replays_complete;
	c[GS_COUNTER_drains] = core->drains;
	c[GS_COUNTER_bytes] = core->bytes;
	c[GS_COUNTER_windows] = core->windows;
	c[GS_COUNTER_epochs] = core->epoch->number;
	c[GS_COUNTER_frames] = core->epoch->n_frames;
	c[GS_COUNTER_stacks] = core->epoch->n_stacks;
	c[GS_COUNTER_threads] = core->epoch->n_threads;
	c[GS_COUNTER_processes] = core->epoch->n_processes;
	c[GS_COUNTER_table_bytes] = gs_epoch_bytes(core->epoch);
}

uint32_t gs_core_counters(struct gs_core *core, uint64_t *out, uint32_t room)
{
	uint64_t all[GS_COUNTER_COUNT + GS_MAPPING_COUNTER_COUNT + GS_TABLE_COUNTER_COUNT] = { 0 };
	uint32_t n = GS_COUNTER_COUNT + GS_MAPPING_COUNTER_COUNT + GS_TABLE_COUNTER_COUNT;

	pthread_mutex_lock(&core->lock);
	count_kernel(core, all);
	if (core->waits)
		count_waits(core->waits, all);
	if (core->launches)
		count_launches(core->launches, all);
	count_core(core, all);
	if (core->mappings)
		memcpy(all + GS_COUNTER_COUNT, gs_mappings_counters(core->mappings), GS_MAPPING_COUNTER_COUNT * sizeof(uint64_t));
	if (core->tables)
		gs_tables_counters(core->tables, all + GS_COUNTER_COUNT + GS_MAPPING_COUNTER_COUNT);
	pthread_mutex_unlock(&core->lock);
	memcpy(out, all, (room < n ? room : n) * sizeof(uint64_t));
	return n;
}

int gs_core_probe_launches(struct gs_core *core, const char *path, const char *function)
{
	return core->launches ? gs_launches_attach(core->launches, path, function) : EINVAL;
}

void gs_core_watch_moments(struct gs_core *core, const uint32_t *tids, uint32_t n)
{
	if (!core->launches)
		return;
	pthread_mutex_lock(&core->lock);
	gs_launches_watch(core->launches, tids, n);
	pthread_mutex_unlock(&core->lock);
}

int gs_core_settled(struct gs_core *core, uint32_t timeout_ms)
{
	return !core->tables || gs_tables_settled(core->tables, timeout_ms);
}

void gs_core_feed(struct gs_core *core, const void *record, uint64_t length)
{
	void *aligned = NULL; /* as the ring has them */

	if (!(core->flags & GS_OPTION_NO_KERNEL) || posix_memalign(&aligned, 8, length + 1))
		return;
	memcpy(aligned, record, length);
	pthread_mutex_lock(&core->lock);
	gs_record(core, aligned, length);
	pthread_mutex_unlock(&core->lock);
	free(aligned);
}

void gs_core_cut(struct gs_core *core, uint64_t now_ns)
{
	if (!(core->flags & GS_OPTION_NO_KERNEL))
		return;
	pthread_mutex_lock(&core->lock);
	core->window_end = now_ns;
	gs_end_window(core, 0, 0);
	pthread_mutex_unlock(&core->lock);
}
