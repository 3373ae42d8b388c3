/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes on one CPU that pass a byte back and forth: nothing but context switches, two a round. Prints rounds, and the CPU
 * seconds of both, each `seconds`. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pass_back(int in, int out)
{
	char byte;

	while (read(in, &byte, 1) == 1 && write(out, &byte, 1) == 1)
		;
	_exit(0);
}

int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1, end = now(CLOCK_MONOTONIC) + seconds;
	int to[2], from[2];
	long rounds = 0;
	cpu_set_t one;
	clockid_t other;
	char byte = 'x';
	pid_t child;

	CPU_ZERO(&one);
	CPU_SET(count > 2 ? atoi(words[2]) : 0, &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (pipe(to) || pipe(from) || (child = fork()) < 0)
		return 1;
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pass_back(to[0], from[1]);
	}
	clock_getcpuclockid(child, &other);
	while (now(CLOCK_MONOTONIC) < end)
		for (int i = 0; i < 100; i++, rounds++)
			if (write(to[1], &byte, 1) != 1 || read(from[0], &byte, 1) != 1)
				return 1;
	printf("%ld %.6f\n", rounds, now(CLOCK_PROCESS_CPUTIME_ID) + now(other));
	kill(child, SIGKILL);
	return 0;
}
