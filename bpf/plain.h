/* SPDX-License-Identifier: Apache-2.0 */
/* The plain sampler of bench/: bpf/plain.bpf.c on every CPU's timer. */
#ifndef GPUSTROBE_PLAIN_H
#define GPUSTROBE_PLAIN_H

#include "core.h"

struct gs_plain_result {
	uint64_t samples, user_frames, time_ns, runs;
};

/* Samples all CPUs for so long; run times are those of bpf_stats. 0, or -1 and *error. */
GS_API int gs_plain_measure(const char *object_path, uint32_t hz, uint32_t milliseconds, struct gs_plain_result *result, struct gs_error *error);

#endif
