/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "schedule.h"

#define MS 1000000ull
#define S 1000000000ull

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
	return value < least ? least : value > most ? most : value;
}

/* The first window of the schedule that starts after now; how many were passed over. */
static uint64_t find_next(struct gs_plan *plan, uint64_t now)
{
	uint64_t from = plan->index;
	if (plan->index < now / plan->period) /* after a long sleep of the machine */
		plan->index = now / plan->period;
	while ((plan->next_begin = gs_window_start(plan->seed, plan->index, plan->period)) < now)
		plan->index++;
	return plan->index - from;
}

static struct gs_plan wanted(const struct gs_agent *wish, const struct gs_policy *policy, uint64_t now)
{
	struct gs_plan plan = {.mode = wish->mode == GS_MODE_AUTO ? policy->mode : (enum gs_mode)wish->mode, .seed = wish->seed};
	if (policy->mode == GS_MODE_OFF || plan.mode > GS_MODE_ALWAYS)
		plan.mode = GS_MODE_OFF;
	if (plan.mode != GS_MODE_OFF && wish->detail_until > now) {
		plan.mode = GS_MODE_ALWAYS;
		plan.detail = 1;
	}
	plan.width = plan.mode == GS_MODE_SESSIONS ? 2 * S : S / 10;
	plan.period = plan.mode == GS_MODE_SESSIONS ? 60 * S : S;
	if (plan.mode == GS_MODE_ALWAYS)
		plan.width = plan.period;
	if (plan.mode == policy->mode && policy->window_ns) {
		plan.width = policy->window_ns;
		plan.period = policy->period_ns;
	}
	uint64_t shortest = wish->mode == GS_MODE_AUTO && plan.mode == GS_MODE_SESSIONS ? 10 * S : 10 * MS; /* toggle rarely there */
	if (plan.mode == GS_MODE_SESSIONS)
		plan.mode = GS_MODE_WINDOWS;
	if (plan.mode == GS_MODE_WINDOWS) {
		plan.period = clamp(wish->period_ns ? wish->period_ns : plan.period, shortest, 3600 * S);
		plan.width = clamp(wish->window_ns ? wish->window_ns : plan.width, MS, plan.period);
	}
	return plan;
}

int gs_plan_update(struct gs_plan *plan, const struct gs_agent *wish, const struct gs_policy *policy, uint64_t now)
{
	struct gs_plan want = wanted(wish, policy, now);
	int other = want.mode != plan->mode || want.detail != plan->detail;
	if (!other && want.width == plan->width && want.period == plan->period && want.seed == plan->seed)
		return 0;
	want.next_begin = UINT64_MAX;
	if (want.mode == GS_MODE_ALWAYS) {
		want.next_begin = now;
	} else if (want.mode == GS_MODE_WINDOWS) {
		want.index = now / want.period;
		find_next(&want, now);
	}
	*plan = want;
	return other;
}

uint64_t gs_plan_advance(struct gs_plan *plan, uint64_t begin, uint64_t now)
{
	if (plan->mode == GS_MODE_ALWAYS) {
		plan->next_begin = begin + plan->period; /* without a gap */
	} else if (plan->mode == GS_MODE_WINDOWS) {
		plan->index++;
		/* late by less than half a width still counts as on time: it opens at once and keeps its width */
		return find_next(plan, now > plan->width / 2 ? now - plan->width / 2 : 0);
	}
	return 0;
}
