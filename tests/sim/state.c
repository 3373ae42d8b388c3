// SPDX-License-Identifier: Apache-2.0
/* The simulated node's state file: mapping it, its load over time, its scripted faults. Linked into each simulated library. */
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct gs_sim_node *mapped;
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

static struct gs_sim_node *map_state(void)
{
	const char *path = getenv(GS_SIM_VARIABLE);
	struct stat status;
	struct gs_sim_node *node = MAP_FAILED;
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size >= (off_t)sizeof(*node))
		node = mmap(NULL, sizeof(*node), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (node == MAP_FAILED) {
		fprintf(stderr, "simulated node: no state in " GS_SIM_VARIABLE "=%s\n", path ? path : "");
		return NULL;
	}
	if (node->magic != GS_SIM_MAGIC || node->version != GS_SIM_VERSION || node->size != sizeof(*node)) {
		fprintf(stderr, "simulated node: %s was written for another build\n", path);
		munmap(node, sizeof(*node));
		return NULL;
	}
	return node;
}

struct gs_sim_node *gs_sim_node(void)
{
	pthread_mutex_lock(&mapping);
	if (!mapped)
		mapped = map_state();
	pthread_mutex_unlock(&mapping);
	return mapped;
}

uint64_t gs_sim_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Load seconds from the period's begin to `at` (<= period). */
static double within(const struct gs_sim_device *device, uint64_t at)
{
	double sum = 0;
	uint32_t n = device->n_points < GS_SIM_MAX_POINTS ? device->n_points : GS_SIM_MAX_POINTS;
	for (uint32_t i = 0; i < n; i++) {
		const struct gs_sim_point *point = &device->points[i], *next = i + 1 < n ? point + 1 : &device->points[0];
		uint64_t end = i + 1 < n ? next->at_ns : device->period_ns, stop = end < at ? end : at;
		if (stop <= point->at_ns)
			break;
		double length = (stop - point->at_ns) / 1e9, whole = (end - point->at_ns) / 1e9;
		double last = point->load + (next->load - point->load) * (whole > 0 ? length / whole : 0);
		sum += length * (point->load + last) / 2;
	}
	return sum;
}

static double since_start(const struct gs_sim_device *device, uint64_t elapsed)
{
	if (!device->period_ns)
		return 0;
	return (elapsed / device->period_ns) * within(device, device->period_ns) + within(device, elapsed % device->period_ns);
}

void gs_sim_busy(struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns)
{
	while (from_ns < to_ns) {
		uint64_t index = from_ns / GS_SIM_BUCKET_NS, end = (index + 1) * GS_SIM_BUCKET_NS, stop = end < to_ns ? end : to_ns;
		struct gs_sim_bucket *bucket = &device->buckets[index % GS_SIM_BUCKETS];
		uint64_t old = __atomic_load_n(&bucket->index, __ATOMIC_ACQUIRE);
		if (old < index && __atomic_compare_exchange_n(&bucket->index, &old, index, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			__atomic_store_n(&bucket->busy_ns, 0, __ATOMIC_RELEASE);
		__atomic_fetch_add(&bucket->busy_ns, stop - from_ns, __ATOMIC_RELAXED);
		__atomic_fetch_add(&device->busy_ns, stop - from_ns, __ATOMIC_RELAXED);
		from_ns = stop;
	}
}

/* Busy time before `at`: all, less what lies in later buckets. Two processes may be busy in the same time; a bucket is never more than full. */
static uint64_t busy_until(const struct gs_sim_device *device, uint64_t at)
{
	uint64_t total = device->busy_ns, index = at / GS_SIM_BUCKET_NS, after = 0;
	for (int i = 0; i < GS_SIM_BUCKETS; i++) {
		const struct gs_sim_bucket *bucket = &device->buckets[i];
		if (bucket->index > index)
			after += bucket->busy_ns;
		else if (bucket->index == index)
			after += bucket->busy_ns * (GS_SIM_BUCKET_NS - at % GS_SIM_BUCKET_NS) / GS_SIM_BUCKET_NS;
	}
	return total > after ? total - after : 0;
}

static double launched_load(const struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t before = busy_until(device, from_ns), until = busy_until(device, to_ns);
	double busy = until > before ? (until - before) / 1e9 : 0, length = (to_ns - from_ns) / 1e9;
	return busy < length ? busy : length;
}

int gs_sim_present(const struct gs_sim_process *process)
{
	return process->pid && (!process->launcher || kill(process->pid, 0) == 0 || errno == EPERM);
}

void gs_sim_hold(uint32_t *lock)
{
	for (uint32_t free = 0; !__atomic_compare_exchange_n(lock, &free, getpid(), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED); free = 0) {
		if (kill(free, 0) < 0 && errno == ESRCH)
			__atomic_compare_exchange_n(lock, &free, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
		sched_yield();
	}
}

void gs_sim_let_go(uint32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

double gs_sim_integral(const struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t start = mapped->start_unix_ns;
	if (from_ns < start)
		from_ns = start;
	if (to_ns <= from_ns)
		return 0;
	if (device->launches)
		return launched_load(device, from_ns, to_ns);
	return since_start(device, to_ns - start) - since_start(device, from_ns - start);
}

double gs_sim_mean(const struct gs_sim_device *device, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t start = mapped->start_unix_ns;
	if (from_ns < start)
		from_ns = start;
	return to_ns > from_ns ? gs_sim_integral(device, from_ns, to_ns) / ((to_ns - from_ns) / 1e9) : 0;
}

static void count_call(struct gs_sim_node *node, const char *function)
{
	static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&counting); /* threads of one process; between processes a slot may double, sums stay right */
	for (int i = 0; i < GS_SIM_MAX_CALLS; i++) {
		if (!node->calls[i].function[0])
			snprintf(node->calls[i].function, sizeof(node->calls[i].function), "%s", function);
		if (strcmp(node->calls[i].function, function) == 0) {
			__atomic_fetch_add(&node->calls[i].count, 1, __ATOMIC_RELAXED);
			break;
		}
	}
	pthread_mutex_unlock(&counting);
}

static int named(const char *wanted, const char *function, int slot)
{
	size_t length = strlen(wanted);
	if (strcmp(wanted, "*") == 0)
		return slot >= 0;
	if (strncmp(wanted, function, length) != 0)
		return 0;
	return !function[length] || (function[length] == '_' && function[length + 1] == 'v');
}

static int take(struct gs_sim_fault *fault)
{
	uint32_t left = __atomic_load_n(&fault->remaining, __ATOMIC_RELAXED);
	while (left && left != GS_SIM_FOREVER)
		if (__atomic_compare_exchange_n(&fault->remaining, &left, left - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return 1;
	return left != 0;
}

int gs_sim_fault(struct gs_sim_node *node, const char *function, int slot)
{
	count_call(node, function);
	for (uint32_t i = 0; i < node->n_faults && i < GS_SIM_MAX_FAULTS; i++) {
		struct gs_sim_fault *fault = &node->faults[i];
		if ((fault->device >= 0 && fault->device != slot) || !named(fault->function, function, slot) || !take(fault))
			continue;
		while (fault->delay_ms < 0)
			pause();
		if (fault->delay_ms)
			usleep(fault->delay_ms * 1000);
		if (fault->code < 0)
			abort();
		return fault->code;
	}
	return 0;
}
