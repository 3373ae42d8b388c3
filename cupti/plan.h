/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent's wish means under this CUPTI's policy, and when the next window is. Pure. */
#ifndef GPUSTROBE_PLAN_H
#define GPUSTROBE_PLAN_H

#include "policy.h"
#include "session.h"

/* Takes the wish into the plan; 1 if windows that are open now must close. */
int gs_plan_update(struct gs_plan *plan, const struct gs_agent *wish, const struct gs_policy *policy, uint64_t now);

/* The window after the one that was just opened at `begin`, or given up. Returns how many it left out, being late. */
uint64_t gs_plan_advance(struct gs_plan *plan, uint64_t begin, uint64_t now);

#endif
