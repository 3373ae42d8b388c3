// SPDX-License-Identifier: Apache-2.0
/* Processes on a simulated device. */
#include "device.h"

#include <math.h>
#include <stdio.h>

static nvmlReturn_t list(const struct gs_sim_device *device, uint32_t kind, unsigned int *count, nvmlProcessInfo_t *infos)
{
	unsigned room = *count, n = 0;
	for (unsigned i = 0; i < device->n_processes && i < GS_SIM_MAX_PROCESSES; i++) {
		const struct gs_sim_process *process = &device->processes[i];
		if (process->kind != kind || !gs_sim_present(process))
			continue;
		if (infos && n < room)
			infos[n] = (nvmlProcessInfo_t){.pid = process->pid, .usedGpuMemory = process->memory,
						       .gpuInstanceId = process->gpu_instance,
						       .computeInstanceId = process->compute_instance};
		n++;
	}
	*count = n;
	return n && (!infos || n > room) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *infos)
{
	DEVICE(handle, device);
	return list(device, GS_SIM_COMPUTE, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *infos)
{
	DEVICE(handle, device);
	return list(device, GS_SIM_GRAPHICS, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count, nvmlProcessInfo_t *infos)
{
	DEVICE(handle, device);
	return list(device, GS_SIM_MPS, count, infos);
}

/* One row per process that was not idle in the driver's last sample period. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *rows, unsigned int *count,
					     unsigned long long last_seen)
{
	DEVICE(handle, device);
	if (device->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	uint64_t start = gs_sim_node()->start_unix_ns, sample = (gs_sim_now() - start) / GS_SIM_SAMPLE_NS;
	uint64_t end = start + sample * GS_SIM_SAMPLE_NS;
	double load = gs_sim_mean(device, end - GS_SIM_SAMPLE_NS, end);
	unsigned n = 0;
	for (unsigned i = 0; i < device->n_processes && i < GS_SIM_MAX_PROCESSES; i++) {
		const struct gs_sim_process *process = &device->processes[i];
		if (!gs_sim_present(process))
			continue;
		double share = process->launcher ? (double)process->busy_ns / (device->busy_ns ? device->busy_ns : 1) : process->share;
		unsigned busy = lround(100 * load * share);
		if (!busy || end / 1000 <= last_seen)
			continue;
		if (rows && n < *count)
			rows[n] = (nvmlProcessUtilizationSample_t){.pid = process->pid, .timeStamp = end / 1000, .smUtil = busy,
								   .memUtil = lround(busy * device->memory_share)};
		n++;
	}
	if (!n)
		return NVML_ERROR_NOT_FOUND;
	int fits = rows && n <= *count;
	*count = n;
	return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	SYSTEM(node);
	for (unsigned d = 0; d < node->n_devices && d < GS_SIM_MAX_DEVICES; d++)
		for (unsigned i = 0; i < node->devices[d].n_processes && i < GS_SIM_MAX_PROCESSES; i++)
			if (node->devices[d].processes[i].pid == pid)
				return (unsigned)snprintf(name, length, "%s", node->devices[d].processes[i].name) < length
					       ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
	return NVML_ERROR_NOT_FOUND;
}
