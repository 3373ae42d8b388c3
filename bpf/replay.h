/* SPDX-License-Identifier: Apache-2.0 */
/* The walk of native.bpf.h over a copied stack, for samples whose process had no table when they were taken. */
#ifndef GPUSTROBE_REPLAY_H
#define GPUSTROBE_REPLAY_H

#include <linux/types.h>
#include <stdint.h>

#include "rules.h"
#include "sample.h"

#define GS_REPLAY_FRAMES 384

struct gs_replay {
	uint64_t addresses[GS_REPLAY_FRAMES]; /* of each frame's own instruction, leaf first */
	uint32_t n;
	uint32_t end; /* enum gs_end */
};

/* The rule at an address: 1; 0 if no mapping holds it. cfa GS_CFA_NONE where no row covers it. */
typedef int (*gs_rule_at)(void *context, uint64_t address, struct gs_rule *rule);

/* copy->n words follow the copy. start_stack: as gs_process has it. */
void gs_replay(const struct gs_stack_copy *copy, uint64_t start_stack, gs_rule_at rule_at, void *context, struct gs_replay *out);

#endif
