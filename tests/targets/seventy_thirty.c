/* SPDX-License-Identifier: Apache-2.0 */
/* Seven tenths of its time in seventy(), three tenths in thirty(), both called by work(). Build with -O0, so that
 * every function keeps a frame pointer (gcc 12 leaves it out of leaf functions at -O1 whatever the options say).
 * Argument: seconds to run (default: until killed). */
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sink;

#define NOINLINE __attribute__((noinline))

NOINLINE void seventy(void)
{
	for (int i = 0; i < 700000; i++)
		sink += i;
}

NOINLINE void thirty(void)
{
	for (int i = 0; i < 300000; i++)
		sink += i;
}

NOINLINE void work(void)
{
	seventy();
	thirty();
	sink++; /* no tail call: work() stays on the stack */
}

int main(int argc, char **argv)
{
	time_t end = argc > 1 ? time(NULL) + atoi(argv[1]) : 0;

	while (!end || time(NULL) < end)
		work();
	return 0;
}
