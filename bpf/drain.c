/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that drains the ring: ten times a second, at the end of each window, and when a sample wakes it. */
#include <bpf/libbpf.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "jit.h"
#include "state.h"

#define DRAIN_INTERVAL (GS_SECOND / 10)
#define FOLLOW_INTERVAL (5 * GS_SECOND) /* between looks for CPUs that came online */

uint64_t gs_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * GS_SECOND + now.tv_nsec;
}

/* Ticks that end with one at the end of the window. */
static void set_timer(struct gs_core *core)
{
	uint64_t first = core->window_end - (core->window_end - core->window_start) / DRAIN_INTERVAL * DRAIN_INTERVAL;
	struct itimerspec ticks = {
		.it_value = { first / GS_SECOND, first % GS_SECOND },
		.it_interval = { 0, DRAIN_INTERVAL },
	};

	timerfd_settime(core->timer, TFD_TIMER_ABSTIME, &ticks, NULL);
}

static void name_jit_code(struct gs_core *core)
{
	const struct gs_jit_view *view;

	while ((view = gs_mappings_jit_answer(core->mappings, core->drain_time)))
		gs_jit_names_answer(&core->epoch->jits, view);
}

static void drain(struct gs_core *core, int last)
{
	uint64_t window;

	pthread_mutex_lock(&core->lock);
	window = core->windows;
	core->drains++;
	core->drain_time = gs_now();
	name_jit_code(core);
	if (last || !(core->flags & GS_OPTION_STALL))
		ring_buffer__consume(core->ring);
	while (core->window_end <= core->drain_time)
		gs_end_window(core, core->drain_time - core->window_end < GS_SECOND, 0);
	if (core->windows != window) {
		gs_mappings_tick(core->mappings, core->drain_time);
		gs_tables_tick(core->tables, core->drain_time);
		set_timer(core);
	}
	pthread_mutex_unlock(&core->lock);
}

static void finish(struct gs_core *core)
{
	gs_timers_disable(&core->timers);
	if (core->waits)
		gs_waits_stop(core->waits);
	if (core->launches)
		gs_launches_detach(core->launches);
	drain(core, 1);
	pthread_mutex_lock(&core->lock);
	core->window_end = core->drain_time > core->window_start ? core->drain_time : core->window_start + 1;
	gs_end_window(core, 1, 1);
	core->stopped = 1;
	pthread_cond_broadcast(&core->ready);
	pthread_mutex_unlock(&core->lock);
}

void *gs_drain_thread(void *argument)
{
	struct gs_core *core = argument;
	struct epoll_event events[8];
	uint64_t ticks, followed = gs_now();

	set_timer(core);
	while (!__atomic_load_n(&core->stopping, __ATOMIC_ACQUIRE)) {
		if (epoll_wait(core->epoll, events, 8, -1) < 0 && errno != EINTR)
			break;
		if (read(core->timer, &ticks, sizeof(ticks)) < 0 && errno != EAGAIN)
			break;
		drain(core, 0);
		if (core->drain_time - followed >= FOLLOW_INTERVAL) {
			followed = core->drain_time;
			gs_timers_follow(&core->timers);
		}
	}
	finish(core);
	return NULL;
}
