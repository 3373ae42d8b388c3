// SPDX-License-Identifier: Apache-2.0
/* A busy loop below 27 nested calls, without frame pointers when built so. Prints rounds per CPU second on exit (SIGTERM). */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t stopped;
static volatile uint64_t sink;

static void stop(int signal_number)
{
	(void)signal_number;
	stopped = 1;
}

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static __attribute__((noinline)) uint64_t work(uint64_t seed)
{
	for (int i = 0; i < 20000; i++)
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return seed;
}

/* The volatile use after the call keeps it from becoming a jump. */
#define LEVEL(this, next)                                                \
	static __attribute__((noinline)) uint64_t this(uint64_t seed)    \
	{                                                                \
		uint64_t result = next(seed + 1);                        \
		sink += result;                                          \
		return result ^ seed;                                    \
	}
LEVEL(level_26, work) LEVEL(level_25, level_26) LEVEL(level_24, level_25) LEVEL(level_23, level_24) LEVEL(level_22, level_23)
LEVEL(level_21, level_22) LEVEL(level_20, level_21) LEVEL(level_19, level_20) LEVEL(level_18, level_19) LEVEL(level_17, level_18)
LEVEL(level_16, level_17) LEVEL(level_15, level_16) LEVEL(level_14, level_15) LEVEL(level_13, level_14) LEVEL(level_12, level_13)
LEVEL(level_11, level_12) LEVEL(level_10, level_11) LEVEL(level_9, level_10) LEVEL(level_8, level_9) LEVEL(level_7, level_8)
LEVEL(level_6, level_7) LEVEL(level_5, level_6) LEVEL(level_4, level_5) LEVEL(level_3, level_4) LEVEL(level_2, level_3)
LEVEL(level_1, level_2)

int main(int argc, char **argv)
{
	double start = now(CLOCK_MONOTONIC), limit = argc > 1 ? atof(argv[1]) : 1e9;
	uint64_t rounds = 0;

	signal(SIGTERM, stop);
	while (!stopped && now(CLOCK_MONOTONIC) - start < limit)
		for (int i = 0; i < 100; i++, rounds++)
			level_1(rounds);
	printf("%.1f\n", (double)rounds / now(CLOCK_PROCESS_CPUTIME_ID));
	return 0;
}
