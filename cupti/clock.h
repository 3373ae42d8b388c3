/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSTROBE_CLOCK_H
#define GPUSTROBE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t gs_clock(clockid_t id)
{
	struct timespec now;
	clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static inline uint64_t gs_mono(void)
{
	return gs_clock(CLOCK_MONOTONIC);
}

#endif
