/* SPDX-License-Identifier: Apache-2.0 */
/* How each simulated NVML function begins: counted, scripted faults obeyed, handle checked. */
#ifndef GS_SIM_NVML_DEVICE_H
#define GS_SIM_NVML_DEVICE_H

#include "../node.h"

#include <pthread.h>

#include "nvml.h"

/* The driver averages utilization over a sixth of a second and keeps 120 of them. */
#define GS_SIM_SAMPLE_NS 166666667ull
#define GS_SIM_SAMPLES 120

nvmlReturn_t gs_sim_system(const char *function, struct gs_sim_node **node);
nvmlReturn_t gs_sim_enter(const char *function, nvmlDevice_t handle, struct gs_sim_device **device);

#define SYSTEM(node) \
	struct gs_sim_node *node; \
	do { \
		nvmlReturn_t code_ = gs_sim_system(__func__, &node); \
		if (code_) \
			return code_; \
	} while (0)

#define DEVICE(handle, device) \
	struct gs_sim_device *device; \
	do { \
		nvmlReturn_t code_ = gs_sim_enter(__func__, handle, &device); \
		if (code_) \
			return code_; \
	} while (0)

#endif
