// SPDX-License-Identifier: Apache-2.0
/* What every call of the simulated libcupti meets first: no driver, too early, a fork's child, a buffer callback. */
#include "state.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct gs_sim_behaviour behaviour;
static struct gs_sim_driver *driver;
static pid_t owner;
static __thread CUptiResult last_error;

static void set(const char *name, double value)
{
#define SET_(known, ignored) \
	if (strcmp(name, #known) == 0) { \
		behaviour.known = value; \
		return; \
	}
	GS_SIM_BEHAVIOURS(SET_)
#undef SET_
	fprintf(stderr, "simulated libcupti: SIM_CUPTI_BEHAVIOUR: no behaviour is called %s\n", name);
	_exit(125);
}

static void read_behaviour(void)
{
	uint32_t v = gs_sim_cupti_version;
	char text[2048], *rest = text, *word, name[64];
	double value;
#define DEFAULT_(known, otherwise) behaviour.known = (otherwise);
	GS_SIM_BEHAVIOURS(DEFAULT_)
#undef DEFAULT_
	snprintf(text, sizeof(text), "%s", getenv("SIM_CUPTI_BEHAVIOUR") ? getenv("SIM_CUPTI_BEHAVIOUR") : "");
	while ((word = strtok_r(rest, ",", &rest)))
		if (sscanf(word, " %63[a-z_]=%lf", name, &value) == 2)
			set(name, value);
		else
			set(word, 1);
}

const struct gs_sim_behaviour *gs_sim_behaviour(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, read_behaviour);
	return &behaviour;
}

static void find_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct gs_sim_driver *(*get)(void) = library ? (struct gs_sim_driver * (*)(void)) dlsym(library, "gs_sim_driver") : NULL;
	struct gs_sim_driver *found = get ? get() : NULL;
	if (found && found->size == sizeof(*found)) {
		owner = getpid();
		driver = found;
		__atomic_store_n(&driver->tracer, &gs_sim_tracer, __ATOMIC_RELEASE);
	}
}

struct gs_sim_driver *gs_sim_cupti_driver(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_driver);
	return driver;
}

_Noreturn void gs_sim_crash(void)
{
	for (volatile int *nothing = NULL;; nothing++)
		*nothing = 0;
}

/* As the wheels' own libraries do on a machine without a driver (tried call by call). */
static CUptiResult without_driver(enum gs_sim_need need)
{
	uint32_t v = gs_sim_cupti_version;
	int exact = gs_sim_behaviour()->null_driver != 0;
	if (exact && (v == 130202 || (need == GS_SIM_FINALIZES && v >= 20 && v <= 28)))
		gs_sim_crash();
	if (v >= 130301)
		return CUPTI_ERROR_UNKNOWN;
	if (need == GS_SIM_NEEDS_DRIVER)
		return v >= 130000 ? CUPTI_ERROR_UNKNOWN : CUPTI_ERROR_NOT_INITIALIZED;
	return CUPTI_SUCCESS;
}

CUptiResult gs_sim_cupti_enter(const char *function, enum gs_sim_need need)
{
	struct gs_sim_driver *its = gs_sim_cupti_driver();
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	if (!its)
		return without_driver(need);
	if (getpid() != owner && __atomic_load_n(&its->initialized, __ATOMIC_ACQUIRE)) {
		if (how->fork_crash != 0)
			gs_sim_crash();
		return CUPTI_ERROR_NOT_INITIALIZED;
	}
	if (how->before_init_crash != 0 && !__atomic_load_n(&its->initialized, __ATOMIC_ACQUIRE))
		gs_sim_crash();
	if (gs_sim_in_buffer_callback) {
		fprintf(stderr, "simulated libcupti: %s called inside a buffer callback\n", function);
		while (how->reentry_hang != 0)
			pause();
		return CUPTI_ERROR_UNKNOWN;
	}
	return CUPTI_SUCCESS;
}

uint64_t gs_sim_cupti_time(uint64_t monotonic)
{
	static uint64_t begun;
	const struct gs_sim_behaviour *how = gs_sim_behaviour();
	if (!monotonic)
		return 0;
	if (!begun)
		begun = monotonic;
	int64_t step = how->clock_step_ms != 0 && monotonic > begun + how->clock_step_after_ms * 1e6 ? how->clock_step_ms * 1e6 : 0;
	return driver->realtime(monotonic) + step;
}

double gs_sim_chance(void)
{
	static uint64_t n;
	uint64_t x = __atomic_add_fetch(&n, 0x9e3779b97f4a7c15ull, __ATOMIC_RELAXED);
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return ((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

CUptiResult gs_sim_result(CUptiResult result)
{
	if (result)
		last_error = result;
	return result;
}

CUptiResult cuptiGetLastError(void)
{
	CUptiResult result = last_error;
	last_error = CUPTI_SUCCESS;
	return result;
}

CUptiResult cuptiGetVersion(uint32_t *version)
{
	if (!gs_sim_cupti_driver()) {
		CUptiResult refused = without_driver(GS_SIM_ALWAYS);
		if (refused)
			return refused;
	}
	*version = gs_sim_cupti_version;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
	ENTER(GS_SIM_ALWAYS);
	if (!timestamp)
		return CUPTI_ERROR_INVALID_PARAMETER;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	*timestamp = driver ? gs_sim_cupti_time(driver->now()) : now.tv_sec * 1000000000ull + now.tv_nsec;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
	static const char *const names[] = {
		[CUPTI_SUCCESS] = "CUPTI_SUCCESS", [CUPTI_ERROR_INVALID_PARAMETER] = "CUPTI_ERROR_INVALID_PARAMETER",
		[CUPTI_ERROR_INVALID_KIND] = "CUPTI_ERROR_INVALID_KIND", [CUPTI_ERROR_MAX_LIMIT_REACHED] = "CUPTI_ERROR_MAX_LIMIT_REACHED",
		[CUPTI_ERROR_NOT_INITIALIZED] = "CUPTI_ERROR_NOT_INITIALIZED", [CUPTI_ERROR_NOT_SUPPORTED] = "CUPTI_ERROR_NOT_SUPPORTED",
		[CUPTI_ERROR_INVALID_OPERATION] = "CUPTI_ERROR_INVALID_OPERATION",
		[CUPTI_ERROR_QUEUE_EMPTY] = "CUPTI_ERROR_QUEUE_EMPTY",
		[CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED] = "CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED",
		[CUPTI_ERROR_INSUFFICIENT_PRIVILEGES] = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
		[CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED] = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
		[CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED] = "CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
		[CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED] = "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED",
	};
	if (!text)
		return CUPTI_ERROR_INVALID_PARAMETER;
	*text = (size_t)result < sizeof(names) / sizeof(names[0]) ? names[result] : NULL;
	if (!*text)
		*text = result == CUPTI_ERROR_UNKNOWN ? "CUPTI_ERROR_UNKNOWN" : "<unknown>";
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetErrorMessage(CUptiResult result, const char **text) { return cuptiGetResultString(result, text); }

/* ---- ids ---- */

CUptiResult cuptiGetDeviceId(CUcontext context, uint32_t *id)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	if (!context || !id)
		return CUPTI_ERROR_INVALID_CONTEXT;
	*id = ((struct gs_sim_context *)context)->ordinal;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetContextId(CUcontext context, uint32_t *id)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	if (!context || !id)
		return CUPTI_ERROR_INVALID_CONTEXT;
	*id = ((struct gs_sim_context *)context)->id;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread, uint32_t *id)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	(void)per_thread;
	if (!id || (!stream && !context))
		return CUPTI_ERROR_INVALID_PARAMETER;
	*id = stream ? ((struct gs_sim_stream *)stream)->id : ((struct gs_sim_context *)context)->legacy->id;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetStreamId(CUcontext context, CUstream stream, uint32_t *id) { return cuptiGetStreamIdEx(context, stream, 0, id); }

CUptiResult cuptiGetGraphId(CUgraph graph, uint32_t *id)
{
	ENTER(GS_SIM_NEEDS_DRIVER);
	if (!graph || !id)
		return CUPTI_ERROR_INVALID_PARAMETER;
	*id = ((struct gs_sim_graph *)graph)->id;
	return CUPTI_SUCCESS;
}

CUptiResult cuptiGetGraphExecId(CUgraphExec graph, uint32_t *id) { return cuptiGetGraphId((CUgraph)graph, id); }
