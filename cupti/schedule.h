/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of windows and of stack sampling: no clock, no state. tests/test_cupti_units.py has a slow twin. */
#ifndef GPUSTROBE_SCHEDULE_H
#define GPUSTROBE_SCHEDULE_H

#include <stdint.h>

/* The n-th number of the sequence `seed`: splitmix64. */
uint64_t gs_random(uint64_t seed, uint64_t n);

/* Start of window `index`: index * period + U, U uniform on [0, period), by gs_random(seed, index). Increases with index. */
uint64_t gs_window_start(uint64_t seed, uint64_t index, uint64_t period);

/* 16.16 weight of a stack that was sampled with `probability` (2^-32): 1/p, at most 65535. 0 for probability 0. */
uint32_t gs_weight(uint32_t probability);

/* Whether process `pid` on `node` records graph nodes where one process in `share` does; 0 = none. */
int gs_node_level(const char *node, uint32_t pid, uint32_t share);

#endif
