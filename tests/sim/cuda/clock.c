// SPDX-License-Identifier: Apache-2.0
/* The simulated clock (SIM_CLOCK=simulated). All passing of time is somebody's sleep: it stands still while a thread that takes
 * part runs, and goes to the earliest deadline when all of them sleep. A thread takes part from its first sleep on. What a library
 * asks of libc comes here through clock/interpose.c, so that it lives in the same time. */
#include "engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FOREVER (~0ull)

struct sleeper {
	struct sleeper *next;
	uint64_t deadline;
	const uint32_t *word; /* ends the sleep when it is no longer `value`; NULL: none */
	uint32_t value, awake;
	pthread_cond_t wake;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sleeper *sleepers;
static uint64_t now_ns = 1000000000;
static int n_running;
static pthread_key_t leaving;

uint64_t gs_sim_simulated_now(void) { return __atomic_load_n(&now_ns, __ATOMIC_RELAXED); }

static int changed(const struct sleeper *sleeper)
{
	return sleeper->word && __atomic_load_n(sleeper->word, __ATOMIC_ACQUIRE) != sleeper->value;
}

static void wake(struct sleeper *chosen)
{
	struct sleeper **at = &sleepers;
	while (*at && *at != chosen)
		at = &(*at)->next;
	if (*at)
		*at = chosen->next;
	chosen->awake = 1;
	n_running++;
	pthread_cond_signal(&chosen->wake);
}

static void schedule(void)
{
	struct sleeper *first = NULL;
	if (n_running > 0)
		return;
	for (struct sleeper *sleeper = sleepers; sleeper; sleeper = sleeper->next) {
		if (changed(sleeper)) {
			wake(sleeper);
			return;
		}
		if (!first || sleeper->deadline <= first->deadline) /* of equals the one that sleeps longest: the list is newest first */
			first = sleeper;
	}
	if (!first || first->deadline == FOREVER)
		return;
	if (first->deadline > now_ns)
		__atomic_store_n(&now_ns, first->deadline, __ATOMIC_RELAXED);
	wake(first);
}

static void leave(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	n_running--;
	schedule();
	pthread_mutex_unlock(&lock);
}

static void take_part(void)
{
	if (pthread_getspecific(leaving))
		return;
	pthread_setspecific(leaving, &lock);
	n_running++;
}

/* A word may be changed by another process: it is looked at every few milliseconds of real time. */
static void wait_awake(struct sleeper *me)
{
	while (!me->awake) {
		struct timespec soon;
		if (!me->word) {
			pthread_cond_wait(&me->wake, &lock);
			continue;
		}
		syscall(SYS_clock_gettime, CLOCK_REALTIME, &soon);
		soon.tv_nsec += 2000000;
		soon.tv_sec += soon.tv_nsec / 1000000000;
		soon.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&me->wake, &lock, &soon);
		if (!me->awake && changed(me))
			wake(me);
	}
}

int gs_sim_sleep_until(uint64_t deadline, const uint32_t *word, uint32_t value)
{
	struct sleeper me = {.deadline = deadline, .word = word, .value = value, .wake = PTHREAD_COND_INITIALIZER};
	if (!changed(&me) && deadline > gs_sim_simulated_now()) {
		pthread_mutex_lock(&lock);
		take_part();
		me.next = sleepers;
		sleepers = &me;
		n_running--;
		schedule();
		wait_awake(&me);
		pthread_mutex_unlock(&lock);
	}
	return changed(&me);
}

/* For a thread that is about to wait for another by means of libc, which no one here sees. */
void gs_sim_simulated_away(void)
{
	if (!gs_sim_engine.simulated_clock || !pthread_getspecific(leaving))
		return;
	pthread_setspecific(leaving, NULL);
	leave(NULL);
}

void gs_sim_simulated_start(void)
{
	pthread_key_create(&leaving, leave);
	void (*attach)(struct gs_sim_driver *) = (void (*)(struct gs_sim_driver *))dlsym(RTLD_DEFAULT, "gs_sim_clock_attach");
	if (attach)
		attach(&gs_sim_engine);
}
