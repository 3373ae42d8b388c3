/* SPDX-License-Identifier: Apache-2.0 */
/* Launches through a probe function like the injected library's: main -> step -> launch_a or launch_b -> probe, a thousand a second.
 * Correlation ids count up from 1; every fourth comes from launch_b, whose calls stand for 3 launches each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

__attribute__((noinline, visibility("default"))) void gpustrobe_launch_probe(uint32_t correlation, uint32_t weight)
{
	__asm__ volatile("" : : "r"(correlation), "r"(weight) : "memory");
}

__attribute__((noinline)) static void launch_a(uint32_t n)
{
	gpustrobe_launch_probe(n, 1 << 16);
	__asm__ volatile("" : : : "memory");
}

__attribute__((noinline)) static void launch_b(uint32_t n)
{
	gpustrobe_launch_probe(n, 3 << 16);
	__asm__ volatile("" : : : "memory");
}

__attribute__((noinline)) static void step(uint32_t n)
{
	struct timespec pause = { 0, 1000000 };

	if (n % 4)
		launch_a(n);
	else
		launch_b(n);
	nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
	uint32_t launches = argc > 1 ? atoi(argv[1]) : 1000;

	getchar();
	for (uint32_t n = 1; n <= launches; n++)
		step(n);
	return 0;
}
