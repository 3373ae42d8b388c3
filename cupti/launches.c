/* SPDX-License-Identifier: Apache-2.0 */
#include "launches.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "schedule.h"

#define COST_EVERY 16    /* callbacks, of which one is timed; a clock costs 20-30 ns */
#define COST_MOST_NS 100000 /* longer: the thread was preempted, which is not our cost */
#define LATENCY_EVERY 4  /* calls, of which one is timed */

struct gs_launches gs_launches;

static _Thread_local struct {
	uint32_t generation;
	uint32_t depth;
	uint32_t tid;
	uint32_t tick;
	uint64_t entered;  /* mono, of the outermost call */
	uint64_t draws;
	uint8_t inside;    /* counted in gs_launches.inside */
} thread;

__attribute__((visibility("default"), noinline, used)) void gpustrobe_launch_probe(uint64_t correlation, uint64_t weight,
										     uint64_t time, uint64_t window)
{
	/* the arguments must be in their registers when the uprobe fires, and the call must not be folded away */
	__asm__ volatile("" ::"r"(correlation), "r"(weight), "r"(time), "r"(window) : "memory");
}

static uint32_t relaxed(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_RELAXED);
}

int gs_first_in_stratum(uint64_t *strata, uint64_t key, uint32_t window)
{
	uint64_t wanted = key << 32 | window;
	for (uint64_t i = 0; i < 8; i++) {
		uint64_t *slot = &strata[((key >> 32) + i) & (GS_STRATA - 1)];
		uint64_t seen = __atomic_load_n(slot, __ATOMIC_RELAXED);
		if (seen == wanted)
			return 0;
		if ((uint32_t)seen == window)
			continue; /* another's */
		if (__atomic_compare_exchange_n(slot, &seen, wanted, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			return 1;
		if (seen == wanted)
			return 0;
	}
	return 0;
}

/* Weight of this launch's stack, 0 = not sampled. The first of each stratum stands for itself, the others for 1/p. */
static uint32_t draw(struct gs_launch *launch, const void *symbol, uint32_t probability)
{
	uint64_t key = gs_random((uintptr_t)symbol ^ (uint64_t)launch->cbid << 48, thread.tid);
	if (gs_first_in_stratum(gs_launches.strata, key, launch->window)) {
		launch->flags |= GS_LAUNCH_FIRST;
		return 1u << 16;
	}
	if (!probability)
		return 0;
	uint64_t random = gs_random(gs_launches.seed ^ (uint64_t)thread.tid << 32, thread.draws++) >> 32;
	return random < probability || probability == UINT32_MAX ? gs_weight(probability) : 0;
}

static void count(uint32_t call, uint32_t id)
{
	uint64_t key = (uint64_t)call << 32 | id;
	for (uint64_t i = 0, at = gs_random(key, 0); i < 32; i++, at++) {
		uint64_t *slot = &gs_launches.counts[at & (GS_COUNT_SLOTS - 1)].key;
		uint64_t seen = __atomic_load_n(slot, __ATOMIC_RELAXED);
		if (!seen && __atomic_compare_exchange_n(slot, &seen, key, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			seen = key;
		if (seen == key) {
			__atomic_fetch_add(&gs_launches.counts[at & (GS_COUNT_SLOTS - 1)].count, 1, __ATOMIC_RELAXED);
			gs_add(gs_launches.ring, GS_COUNTER_launches_counted, 1);
			return;
		}
	}
	gs_add(gs_launches.ring, GS_COUNTER_counts_full, 1);
}

static void record(struct gs_launch *launch, struct gs_cover cover, const void *symbol)
{
	struct gs_ring *ring = gs_launches.ring;
	launch->type = GS_RECORD_LAUNCH;
	launch->time = thread.entered;
	launch->tid = thread.tid;
	launch->window = cover.window;
	launch->multiplicity = cover.multiplicity;
	launch->weight = draw(launch, symbol, cover.probability);
	if (launch->weight)
		launch->flags |= GS_LAUNCH_SAMPLED;
	gs_add(ring, GS_COUNTER_launches, 1);
	gs_ring_push(ring, launch, 1);
	if (launch->weight) {
		gs_add(ring, GS_COUNTER_launches_sampled, 1);
		gpustrobe_launch_probe(launch->correlation, launch->weight, launch->time, launch->window);
	}
}

static void enter(int domain, uint32_t cbid, const void *data)
{
	struct gs_launch launch = {.correlation = at32(data, DATA_CORRELATION)};
	struct gs_cover cover = gs_windows_launch(gs_launches.windows, thread.entered, launch.correlation);
	if (!cover.window && !relaxed(&gs_launches.counting))
		return;
	const char *symbol = NULL;
	launch.call = gs_launches.calls.kind[domain == DOMAIN_RUNTIME][cbid];
	if (launch.call == GS_CALL_KERNEL)
		symbol = (const char *)(uintptr_t)at64(data, DATA_SYMBOL);
	if (symbol)
		launch.function = gs_pointer_id(gs_launches.names, symbol, 0);
	const void *params = (const void *)(uintptr_t)at64(data, DATA_PARAMS);
	if (launch.call == GS_CALL_GRAPH && gs_launches.graph_id && params) /* its first parameter, in both APIs */
		gs_launches.graph_id((void *)(uintptr_t)at64(params, 0), &launch.graph);
	if (relaxed(&gs_launches.counting) && (launch.call == GS_CALL_KERNEL || launch.call == GS_CALL_GRAPH))
		count(launch.call, launch.call == GS_CALL_GRAPH ? launch.graph : launch.function);
	if (!cover.window)
		return;
	__atomic_fetch_add(&gs_launches.inside, 1, __ATOMIC_RELAXED);
	thread.inside = 1;
	launch.context = at32(data, DATA_CONTEXT_UID);
	launch.cbid = cbid | (domain == DOMAIN_DRIVER ? 1u << 31 : 0);
	record(&launch, cover, symbol);
}

static void leave(void)
{
	struct gs_ring *ring = gs_launches.ring;
	uint8_t inside = thread.inside;
	if (inside) {
		thread.inside = 0;
		__atomic_fetch_sub(&gs_launches.inside, 1, __ATOMIC_RELEASE);
	}
	if (relaxed(&gs_launches.finalize) && __atomic_exchange_n(&gs_launches.finalize, 0, __ATOMIC_ACQ_REL)) {
		gs_launches.at_exit();
		return;
	}
	if (thread.tick % LATENCY_EVERY || (!inside && relaxed(&gs_launches.recording)))
		return;
	gs_add(ring, inside ? GS_COUNTER_latency_in_ns : GS_COUNTER_latency_out_ns, gs_mono() - thread.entered);
	gs_add(ring, inside ? GS_COUNTER_latency_in : GS_COUNTER_latency_out, 1);
}

static void remember_thread(void)
{
	uint32_t generation = relaxed(&gs_launches.generation);
	if (!thread.tid)
		thread.tid = (uint32_t)syscall(SYS_gettid);
	if (thread.generation == generation)
		return;
	thread.generation = generation;
	thread.depth = 0;
	thread.inside = 0;
}

void gs_launch_callback(void *user, int domain, uint32_t cbid, const void *data)
{
	(void)user;
	if (!data || (domain != DOMAIN_DRIVER && domain != DOMAIN_RUNTIME) || cbid >= GS_MOST_CBIDS)
		return;
	if (relaxed(&gs_launches.forked)) {
		gs_add(gs_launches.ring, GS_COUNTER_callbacks_in_child, 1);
		return;
	}
	remember_thread();
	if (at32(data, DATA_SITE) == SITE_ENTER) {
		if (thread.depth++)
			return; /* the runtime calls the driver: the outermost call is the launch */
		thread.tick++;
		thread.entered = gs_mono();
		enter(domain, cbid, data);
		if (thread.tick % COST_EVERY == 0) {
			uint64_t cost = gs_mono() - thread.entered;
			gs_add(gs_launches.ring, GS_COUNTER_callback_ns, COST_EVERY * (cost < COST_MOST_NS ? cost : COST_MOST_NS));
		}
	} else if (thread.depth && !--thread.depth) {
		leave();
		if (thread.tick % COST_EVERY == 0)
			gs_add(gs_launches.ring, GS_COUNTER_callbacks, 2 * COST_EVERY);
	}
}

void gs_count_from(struct gs_launches *launches, uint64_t now)
{
	launches->counting_since = now;
	memset(launches->counts, 0, sizeof launches->counts);
	__atomic_store_n(&launches->counting, now != 0, __ATOMIC_RELEASE);
}

void gs_tell_counts(struct gs_launches *launches, uint64_t now)
{
	for (uint32_t i = 0; i < GS_COUNT_SLOTS; i++) {
		uint64_t key = __atomic_load_n(&launches->counts[i].key, __ATOMIC_RELAXED);
		uint64_t value = __atomic_load_n(&launches->counts[i].count, __ATOMIC_RELAXED);
		if (!key || value == launches->counts[i].told)
			continue;
		uint16_t call = (uint16_t)(key >> 32);
		struct gs_count told = {.type = GS_RECORD_COUNT, .call = call, .time = now, .since = launches->counting_since, .count = value};
		if (call == GS_CALL_GRAPH)
			told.graph = (uint32_t)key;
		else
			told.function = (uint32_t)key;
		if (gs_ring_push(launches->ring, &told, 1))
			launches->counts[i].told = value;
	}
}
