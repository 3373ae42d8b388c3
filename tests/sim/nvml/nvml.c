// SPDX-License-Identifier: Apache-2.0
/* The simulated libnvidia-ml.so.1: start, system, and what a device is. Readings are in readings.c, processes in processes.c.
 * Compiled against NVIDIA's own nvml.h, so a wrong signature does not build; what is not here is not exported, which
 * bindings report as NVML_ERROR_FUNCTION_NOT_FOUND, as they do with an old driver. */
#include "device.h"

#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;
static int visible[GS_SIM_MAX_DEVICES]; /* NVML lists devices when it starts, and not again */
static unsigned n_visible;

static nvmlReturn_t start(const char *function)
{
	struct gs_sim_node *node = gs_sim_node();
	if (!node)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	nvmlReturn_t code = gs_sim_fault(node, function, -1);
	if (code)
		return code;
	pthread_mutex_lock(&lock);
	if (!references++) {
		n_visible = 0;
		for (unsigned i = 0; i < node->n_devices && i < GS_SIM_MAX_DEVICES; i++)
			if (!node->devices[i].lost)
				visible[n_visible++] = i;
	}
	pthread_mutex_unlock(&lock);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return start(__func__); }
nvmlReturn_t nvmlInit_v2(void) { return start(__func__); }

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t code = NVML_SUCCESS;
	pthread_mutex_lock(&lock);
	if (references)
		references--;
	else
		code = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&lock);
	return code;
}

nvmlReturn_t gs_sim_system(const char *function, struct gs_sim_node **node)
{
	if (!references)
		return NVML_ERROR_UNINITIALIZED;
	*node = gs_sim_node();
	return gs_sim_fault(*node, function, -1);
}

nvmlReturn_t gs_sim_enter(const char *function, nvmlDevice_t handle, struct gs_sim_device **device)
{
	uintptr_t slot = (uintptr_t)handle - 1;
	if (!references)
		return NVML_ERROR_UNINITIALIZED;
	struct gs_sim_node *node = gs_sim_node();
	if (slot >= GS_SIM_MAX_DEVICES || slot >= node->n_devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &node->devices[slot];
	nvmlReturn_t code = gs_sim_fault(node, function, slot);
	if (code)
		return code;
	return (*device)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static nvmlReturn_t put(char *to, unsigned int length, const char *text)
{
	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	return (unsigned)snprintf(to, length, "%s", text) < length ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
	case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_IN_USE: return "In use by another client";
	case NVML_ERROR_MEMORY: return "Insufficient Memory";
	case NVML_ERROR_NO_DATA: return "No data";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case NVML_ERROR_NOT_READY: return "System is not in ready state";
	case NVML_ERROR_GPU_NOT_FOUND: return "No GPUs were found";
	default: return "Unknown Error";
	}
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	SYSTEM(node);
	return put(version, length, node->driver_version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	SYSTEM(node);
	return put(version, length, node->nvml_version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	SYSTEM(node);
	*version = node->cuda_version;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	SYSTEM(node);
	*count = n_visible;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
	SYSTEM(node);
	if (index >= n_visible)
		return NVML_ERROR_INVALID_ARGUMENT;
	*handle = (nvmlDevice_t)(uintptr_t)(visible[index] + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
	SYSTEM(node);
	for (unsigned i = 0; i < n_visible; i++)
		if (strcmp(node->devices[visible[i]].uuid, uuid) == 0)
			return nvmlDeviceGetHandleByIndex_v2(i, handle);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned int *index)
{
	DEVICE(handle, device);
	for (*index = 0; *index < n_visible && &gs_sim_node()->devices[visible[*index]] != device; ++*index)
		;
	return *index < n_visible ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
	DEVICE(handle, device);
	return put(uuid, length, device->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned int length)
{
	DEVICE(handle, device);
	return put(name, length, device->name);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
	DEVICE(handle, device);
	unsigned domain = 0, bus = 0, slot = 0;
	memset(pci, 0, sizeof(*pci));
	if (sscanf(device->bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return NVML_ERROR_UNKNOWN;
	pci->domain = domain;
	pci->bus = bus;
	pci->device = slot;
	snprintf(pci->busId, sizeof(pci->busId), "%s", device->bus_id);
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04x:%02x:%02x.0", domain, bus, slot);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *current, unsigned int *pending)
{
	DEVICE(handle, device);
	*current = *pending = device->mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
	return NVML_SUCCESS;
}
