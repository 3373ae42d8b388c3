/* SPDX-License-Identifier: Apache-2.0 */
#include "timers.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "error.h"

uint64_t gs_period(uint32_t hz)
{
	return (uint64_t)(1e9 / hz * GS_PERIOD_SHARE + 0.5);
}

/* Marks in `online` the CPUs of a list like "0-3,8". Returns 0, or -1. */
static int read_online(unsigned char *online, int n_cpus)
{
	FILE *file = fopen("/sys/devices/system/cpu/online", "re");
	int first, last, status = -1;

	memset(online, 0, n_cpus);
	if (!file)
		return -1;
	while (fscanf(file, "%d", &first) == 1) {
		last = first;
		if (fscanf(file, "-%d", &last) < 0)
			last = first;
		for (int cpu = first < 0 ? 0 : first; cpu <= last && cpu < n_cpus; cpu++)
			online[cpu] = 1;
		status = 0;
		if (fgetc(file) != ',')
			break;
	}
	fclose(file);
	return status;
}

static int open_event(struct gs_timers *t, int cpu)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = t->period,
		.disabled = 1,
	};
	int fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		return -1;
	if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, t->program) || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0)) {
		int number = errno;

		close(fd);
		errno = number;
		return -1;
	}
	t->cpus[cpu].fd = fd;
	t->n_open++;
	return 0;
}

static uint64_t count(int fd)
{
	uint64_t value = 0;

	return read(fd, &value, sizeof(value)) == sizeof(value) ? value : 0;
}

static void close_event(struct gs_timers *t, struct gs_timer *timer)
{
	timer->ended += count(timer->fd) / t->period * t->period;
	close(timer->fd);
	timer->fd = -1;
	t->n_open--;
}

static int explain(struct gs_error *error, int cpu, int number)
{
	if (number == EACCES || number == EPERM)
		return gs_fail(error, GS_FAULT_perf_paranoid, number, "perf_event_open on CPU %d: %s", cpu, strerror(number));
	return gs_fail(error, GS_FAULT_perf, number, "perf_event_open on CPU %d: %s", cpu, strerror(number));
}

/* Opens events where there are none. Returns 0, or -1 with the CPU in *failed and errno. */
static int open_missing(struct gs_timers *t, const unsigned char *online, int stagger, int *failed)
{
	struct timespec pause = { 0, (long)(t->period / t->n_cpus) };

	for (int cpu = 0; cpu < t->n_cpus; cpu++) {
		struct gs_timer *timer = &t->cpus[cpu];

		if (timer->fd >= 0 && !(online[cpu] && timer->online)) { /* it was away: its event does not come back by itself */
			if (online[cpu])
				close_event(t, timer);
		}
		timer->online = online[cpu];
		if (!online[cpu] || timer->fd >= 0)
			continue;
		if (open_event(t, cpu)) {
			*failed = cpu;
			return -1;
		}
		if (stagger)
			nanosleep(&pause, NULL);
	}
	return 0;
}

int gs_timers_open(struct gs_timers *t, int program, uint32_t hz, struct gs_error *error)
{
	int failed = 0;

	t->program = program;
	t->period = gs_period(hz);
	t->n_open = 0;
	t->n_cpus = libbpf_num_possible_cpus();
	if (t->n_cpus <= 0)
		return gs_fail(error, GS_FAULT_perf, -t->n_cpus, "/sys/devices/system/cpu/possible could not be read");
	t->cpus = calloc(t->n_cpus, sizeof(*t->cpus));

	unsigned char *online = calloc(t->n_cpus, 1);
	int status = 0;

	if (!t->cpus || !online) {
		free(online);
		return gs_fail(error, GS_FAULT_memory, ENOMEM, "no memory for %d CPUs", t->n_cpus);
	}
	for (int cpu = 0; cpu < t->n_cpus; cpu++)
		t->cpus[cpu].fd = -1;
	if (read_online(online, t->n_cpus))
		memset(online, 1, t->n_cpus);
	if (open_missing(t, online, 1, &failed))
		status = explain(error, failed, errno);
	free(online);
	return status;
}

void gs_timers_follow(struct gs_timers *t)
{
	unsigned char online[4096];
	int failed;

	if (t->n_cpus > (int)sizeof(online) || read_online(online, t->n_cpus))
		return;
	open_missing(t, online, 0, &failed); /* a CPU that refuses now is tried again next time */
}

uint64_t gs_timers_produced(struct gs_timers *t, int cpu)
{
	const struct gs_timer *timer = &t->cpus[cpu];

	return timer->ended / t->period + (timer->fd >= 0 ? count(timer->fd) / t->period : 0);
}

void gs_timers_disable(struct gs_timers *t)
{
	for (int cpu = 0; cpu < t->n_cpus; cpu++)
		if (t->cpus[cpu].fd >= 0)
			ioctl(t->cpus[cpu].fd, PERF_EVENT_IOC_DISABLE, 0);
}

void gs_timers_close(struct gs_timers *t)
{
	for (int cpu = 0; t->cpus && cpu < t->n_cpus; cpu++)
		if (t->cpus[cpu].fd >= 0)
			close(t->cpus[cpu].fd);
	free(t->cpus);
	t->cpus = NULL;
}
