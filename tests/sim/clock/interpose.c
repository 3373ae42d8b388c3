// SPDX-License-Identifier: Apache-2.0
/* libsimclock.so, preloaded: clocks, sleeps and futex waits with a deadline are those of the simulated clock once cuInit has started
 * it. CPU clocks stay real. Condition variables, poll and their like do not come here: their timeouts are real time. */
#include "../cuda/engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static struct gs_sim_driver *driver;

void gs_sim_clock_attach(struct gs_sim_driver *its) { __atomic_store_n(&driver, its, __ATOMIC_RELEASE); }

static int is_real(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI; }
static int is_simulated(clockid_t clock)
{
	return is_real(clock) || clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE ||
	       clock == CLOCK_BOOTTIME;
}

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
	static long (*real)(long, ...);
	if (!real)
		real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return real(number, a, b, c, d, e, f);
}

static uint64_t ns_of(const struct timespec *time) { return time->tv_sec * 1000000000ull + time->tv_nsec; }

int clock_gettime(clockid_t clock, struct timespec *time)
{
	struct gs_sim_driver *its = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
	if (!its || !is_simulated(clock))
		return raw(SYS_clock_gettime, clock, (long)time, 0, 0, 0, 0);
	uint64_t now = its->now();
	now = is_real(clock) ? its->realtime(now) : now;
	*time = (struct timespec){now / 1000000000, now % 1000000000};
	return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	struct timespec now;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	*time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
	return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *left)
{
	struct gs_sim_driver *its = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
	if (!its || !is_simulated(clock))
		return raw(SYS_clock_nanosleep, clock, flags, (long)request, (long)left, 0, 0) ? errno : 0;
	uint64_t at = ns_of(request);
	if (!(flags & TIMER_ABSTIME))
		at += its->now();
	else if (is_real(clock))
		at -= its->realtime(0);
	its->sleep_until(at, NULL, 0);
	return 0;
}

int nanosleep(const struct timespec *request, struct timespec *left)
{
	int error = clock_nanosleep(CLOCK_MONOTONIC, 0, request, left);
	errno = error ? error : errno;
	return error ? -1 : 0;
}

int usleep(useconds_t length)
{
	struct timespec request = {length / 1000000, length % 1000000 * 1000l};
	return nanosleep(&request, NULL);
}

int pthread_join(pthread_t thread, void **value)
{
	static int (*real)(pthread_t, void **);
	struct gs_sim_driver *its = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
	if (!real)
		real = (int (*)(pthread_t, void **))dlsym(RTLD_NEXT, "pthread_join");
	if (its)
		its->away();
	return real(thread, value);
}

static long wait_word(struct gs_sim_driver *its, const uint32_t *word, int operation, uint32_t value, const struct timespec *time)
{
	uint64_t deadline = ~0ull;
	if (time)
		deadline = (operation & FUTEX_CMD_MASK) == FUTEX_WAIT ? its->now() + ns_of(time)
			: operation & FUTEX_CLOCK_REALTIME ? ns_of(time) - its->realtime(0) : ns_of(time);
	if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
		errno = EAGAIN;
		return -1;
	}
	if (its->sleep_until(deadline, word, value))
		return 0;
	errno = ETIMEDOUT;
	return -1;
}

long syscall(long number, ...)
{
	struct gs_sim_driver *its = __atomic_load_n(&driver, __ATOMIC_ACQUIRE);
	va_list list;
	long a[6];
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	int command = a[1] & FUTEX_CMD_MASK;
	if (its && number == SYS_futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET))
		return wait_word(its, (const uint32_t *)a[0], a[1], a[2], (const struct timespec *)a[3]);
	return raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
