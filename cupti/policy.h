/* SPDX-License-Identifier: Apache-2.0 */
/* What CUPTI may do by version: the one table. A measurement on a real GPU changes a line of it. */
#ifndef GPUSTROBE_POLICY_H
#define GPUSTROBE_POLICY_H

#include <stdint.h>

#include "ring.h"

struct gs_policy {
	uint32_t from;        /* cuptiGetVersion of its first release */
	enum gs_mode mode;    /* what AUTO means; OFF = no CUPTI at all, uprobes serve */
	uint64_t window_ns, period_ns;
	uint8_t may_finalize;
	uint8_t graph_ids_hold; /* graph records keep their correlation ids after the first session */
};

/* soname tells 11.8 from 12.0 and 12.1: all three call themselves 18. */
const struct gs_policy *gs_policy_of(uint32_t version, const char *soname);

#endif
