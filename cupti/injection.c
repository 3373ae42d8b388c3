/* SPDX-License-Identifier: Apache-2.0 */
/* What libcuda calls when CUDA_INJECTION64_PATH names this library, and the one thread we have. The thread blocks on a futex
 * of the control page, without a timeout, until an agent wakes it. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "old_glibc.h"
#include "session.h"

#define EXIT_LIMIT_NS 500000000ull /* the program's exit waits at most so long for its tail */

static struct gs_ring ring;
static struct gs_session session;
static atomic_flag started = ATOMIC_FLAG_INIT;
static uint32_t running, exiting, finished; /* finished is a futex */

static void futex_wait(uint32_t *word, uint32_t value, const uint64_t *deadline)
{
	struct timespec time;
	if (deadline) {
		time.tv_sec = (time_t)(*deadline / 1000000000);
		time.tv_nsec = (long)(*deadline % 1000000000);
	}
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, deadline ? &time : NULL, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void futex_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint32_t acquire(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

/* Runs in exit(), in the thread that called it. */
static void at_exit(void)
{
	uint64_t deadline = gs_mono() + EXIT_LIMIT_NS;
	if (!acquire(&running) || acquire(&gs_launches.forked))
		return;
	if ((uint32_t)getpid() != ring.control->layout.pid) /* a child that clone() made, past the handlers of fork */
		return;
	if (!__atomic_exchange_n(&exiting, 1, __ATOMIC_ACQ_REL)) {
		__atomic_fetch_add(&ring.control->agent.wake, 1, __ATOMIC_RELEASE);
		futex_wake(&ring.control->agent.wake);
	}
	while (!acquire(&finished) && gs_mono() < deadline)
		futex_wait(&finished, 0, &deadline);
}

/* Handlers run last in, first out, and CUPTI puts its own in when it is first used: ours again, to run before it. */
static void at_exit_again(void)
{
	static int done;
	if (!done && session.recorder.enabled_once)
		done = !atexit(at_exit);
}

/* While the agent's heartbeat changes. */
static void attend(uint32_t *wake, uint32_t *heard)
{
	uint64_t beat = 0, changed = gs_mono();
	gs_session_attach(&session);
	while (!acquire(&exiting)) {
		*heard = acquire(wake);
		uint64_t next = gs_session_round(&session), now = gs_mono();
		uint64_t seen = __atomic_load_n(&ring.control->agent.heartbeat, __ATOMIC_RELAXED);
		if (seen != beat)
			changed = now;
		beat = seen;
		at_exit_again();
		if (now - changed > GS_HEARTBEAT_LIMIT_NS)
			break;
		if (next > changed + GS_HEARTBEAT_LIMIT_NS)
			next = changed + GS_HEARTBEAT_LIMIT_NS + 1;
		if (next > now)
			futex_wait(wake, *heard, &next);
	}
	if (!acquire(&exiting))
		gs_session_detach(&session);
}

static void *attendant(void *unused)
{
	uint32_t *wake = &ring.control->agent.wake, heard = 0;
	(void)unused;
	prctl(PR_SET_NAME, "gpustrobe");
	while (!acquire(&exiting)) {
		if (acquire(wake) == heard)
			futex_wait(wake, heard, NULL);
		else
			attend(wake, &heard);
	}
	gs_session_exit(&session);
	__atomic_store_n(&finished, 1, __ATOMIC_RELEASE);
	futex_wake(&finished);
	return NULL;
}

/* The child has no thread of ours and must never call CUPTI; it shows the agent no ring either. The number may be another
 * file's by now: programs close what they do not know. */
static void in_child(void)
{
	char link[32] = "/proc/self/fd/", name[64] = "", digits[12];
	int n = 0, at = (int)strlen(link);
	__atomic_store_n(&gs_launches.forked, 1, __ATOMIC_RELEASE);
	for (int rest = ring.fd; rest || !n; rest /= 10) /* snprintf may take locks that the parent's threads hold */
		digits[n++] = (char)('0' + rest % 10);
	while (n)
		link[at++] = digits[--n];
	if (readlink(link, name, sizeof name - 1) > 0 && strstr(name, GS_RING_NAME))
		close(ring.fd);
}

static int start_thread(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	int error;
	if (pthread_attr_init(&attributes))
		return -1;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, 1 << 20); /* static TLS of large programs comes out of it */
	sigfillset(&all); /* the program's signals are for its own threads */
	sigprocmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, &attributes, attendant, NULL);
	sigprocmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return error;
}

/* 1 = loaded. Errors leave the program as it was, without us. Source: CUPTI's documentation of injection. */
__attribute__((visibility("default"))) int InitializeInjection(void)
{
	int saved = errno;
	if (!atomic_flag_test_and_set(&started) && !gs_ring_create(&ring, GS_RING_SLOTS, GS_ARENA_SIZE)) {
		session.ring = &ring;
		gs_launches.ring = &ring;
		session.names = gs_names_create(&ring);
		if (session.names && !pthread_atfork(NULL, NULL, in_child) && !start_thread()) {
			__atomic_store_n(&running, 1, __ATOMIC_RELEASE);
			atexit(at_exit);
		}
	}
	errno = saved;
	return 1;
}
