/* SPDX-License-Identifier: Apache-2.0 */
/* Launches kernels of known names through tests/cupti_fake.c. Arguments: seconds, microseconds between launches, threads, how it
 * ends (return, _exit, fork). Prints the number of launches. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned flags);
void fake_launch(const char *name, uint32_t ns, uint32_t grid);

static double seconds;
static int pause_us;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *loop(void *unused)
{
	static const char *const names[] = {"_Z4gemmPfS_S_i", "_Z4reluPfi", "_Z4gemmPfS_S_i", "_Z7softmaxPfi"};
	long n = 0;
	(void)unused;
	for (double end = now() + seconds; now() < end; n++) {
		fake_launch(names[n % 4], 10000 + 1000 * (uint32_t)(n % 4), 1 + (uint32_t)(n % 3));
		if (n == 5000) /* the first of a rare kernel, seen now and then */
			fake_launch("_Z4rarePf", 500, 1);
		if (pause_us)
			usleep((useconds_t)pause_us);
	}
	return (void *)n;
}

int main(int argc, char **argv)
{
	pthread_t threads[16];
	int n = argc > 3 ? atoi(argv[3]) : 1;
	const char *how = argc > 4 ? argv[4] : "return";
	long total = 0;
	seconds = atof(argv[1]);
	pause_us = atoi(argv[2]);
	cuInit(0);
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < n; i++)
		pthread_create(&threads[i], NULL, loop, NULL);
	for (int i = 0; i < n; i++) {
		void *count;
		pthread_join(threads[i], &count);
		total += (long)count;
	}
	if (!strcmp(how, "fork")) {
		pid_t child = fork();
		if (!child) {
			fake_launch("_Z5childv", 1000, 1);
			exit(7);
		}
		int status;
		waitpid(child, &status, 0);
		total += WEXITSTATUS(status) == 7;
	}
	printf("%ld\n", total);
	fflush(stdout);
	if (!strcmp(how, "_exit"))
		_exit(3);
	return 3;
}
