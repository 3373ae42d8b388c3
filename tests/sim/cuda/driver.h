/* SPDX-License-Identifier: Apache-2.0 */
/* How a traced function of the simulated driver begins and ends: NVIDIA's own parameter structures and callback ids. */
#ifndef GS_SIM_DRIVER_H
#define GS_SIM_DRIVER_H

#include "engine.h"

#include <pthread.h>

#include <cupti.h>

#define GS_SIM_DEVICE_MEMORY 0x200000000000ull

/* Values are given by the names of generated_cuda_meta.h, in whose structures CUPTI's clients read them. */
#define CALL(function, kernel, ...) \
	function##_params parameters_ = {__VA_ARGS__}; \
	CUresult result_ = CUDA_SUCCESS; \
	struct gs_sim_call call_ = {.domain = GS_SIM_DRIVER, .cbid = CUPTI_DRIVER_TRACE_CBID_##function, .name = #function, \
				    .symbol = kernel, .params = &parameters_, .result = &result_, .context = gs_sim_current()}; \
	gs_sim_engine.call_begin(&call_)

#define END(value) ({ result_ = (value); gs_sim_engine.call_end(&call_); result_; })

#define READY() \
	do { \
		if (gs_sim_ready()) \
			return CUDA_ERROR_NOT_INITIALIZED; \
	} while (0)

#define CONTEXT() \
	READY(); \
	struct gs_sim_context *context = gs_sim_current(); \
	if (!context) \
		return CUDA_ERROR_INVALID_CONTEXT

CUresult gs_sim_ready(void);
struct gs_sim_context *gs_sim_current(void);
struct gs_sim_stream *gs_sim_stream_of(CUstream handle, int per_thread);
struct gs_sim_function *gs_sim_function(const char *name);
int gs_sim_memory_kind(uint64_t address);

#endif
