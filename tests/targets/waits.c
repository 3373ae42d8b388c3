/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that wait in known places for known times; the process ends with its standard input or after `seconds`. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define AWAY __attribute__((noinline, noclone))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int to[2];

AWAY void rest(long milliseconds)
{
	struct timespec pause = { milliseconds / 1000, milliseconds % 1000 * 1000000L };

	nanosleep(&pause, NULL);
	__asm__ volatile("");
}

AWAY void sleep_seventy(void) { rest(70); __asm__ volatile(""); }
AWAY void sleep_thirty(void) { rest(30); __asm__ volatile(""); }

static void *sleeper(void *unused)
{
	for (;;) {
		sleep_seventy();
		sleep_thirty();
	}
	return unused;
}

/* Holds the lock 40 of each 50 ms, and writes to the pipe every 50 ms. */
AWAY static void *holder(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		rest(40);
		pthread_mutex_unlock(&lock);
		if (write(to[1], "x", 1) != 1)
			abort();
		rest(10);
	}
	return unused;
}

AWAY static void wait_for_lock(void)
{
	pthread_mutex_lock(&lock);
	pthread_mutex_unlock(&lock);
	__asm__ volatile("");
}

static void *contender(void *unused)
{
	for (;;) {
		wait_for_lock();
		rest(15);
	}
	return unused;
}

AWAY static void wait_for_pipe(void)
{
	char byte;

	if (read(to[0], &byte, 1) != 1)
		abort();
	__asm__ volatile("");
}

static void *reader(void *unused)
{
	for (;;)
		wait_for_pipe();
	return unused;
}

/* Never ends. */
AWAY static void wait_for_ever(void)
{
	int epoll = epoll_create1(0);
	struct epoll_event event;

	epoll_wait(epoll, &event, 1, -1);
	__asm__ volatile("");
}

static void *daemon_thread(void *unused)
{
	rest(400); /* its process is known by then */
	for (;;)
		wait_for_ever();
	return unused;
}

int main(int count, char **words)
{
	void *(*bodies[])(void *) = { sleeper, holder, contender, reader, daemon_thread };
	pthread_t thread;

	if (pipe(to))
		return 1;
	for (unsigned i = 0; i < sizeof(bodies) / sizeof(*bodies); i++)
		pthread_create(&thread, NULL, bodies[i], NULL);
	sleep(count > 1 ? atoi(words[1]) : 30);
	return 0;
}
