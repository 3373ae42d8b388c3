// SPDX-License-Identifier: Apache-2.0
/* Readings of a simulated device, each a function of its load over time. */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND 1000000000ull

/* Driver samples stand at multiples of the sample period since the node's start. */
static uint64_t newest_sample(uint64_t now)
{
	uint64_t start = gs_sim_node()->start_unix_ns;
	return now > start ? (now - start) / GS_SIM_SAMPLE_NS : 0;
}

static uint64_t sample_end(uint64_t sample) { return gs_sim_node()->start_unix_ns + sample * GS_SIM_SAMPLE_NS; }

static double sample_load(const struct gs_sim_device *device, uint64_t sample)
{
	return gs_sim_mean(device, sample_end(sample) - GS_SIM_SAMPLE_NS, sample_end(sample));
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
	DEVICE(handle, device);
	if (device->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	double load = sample_load(device, newest_sample(gs_sim_now()));
	utilization->gpu = lround(100 * load);
	utilization->memory = lround(100 * load * device->memory_share);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, nvmlSamplingType_t type, unsigned long long last_seen,
				  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
	DEVICE(handle, device);
	if (!count || !value_type || (samples && !*count))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (device->mig || (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES))
		return NVML_ERROR_NOT_SUPPORTED;
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
	uint64_t newest = newest_sample(gs_sim_now()), first = newest > GS_SIM_SAMPLES ? newest - GS_SIM_SAMPLES + 1 : 1;
	while (first <= newest && sample_end(first) / 1000 <= last_seen)
		first++;
	if (first > newest)
		return NVML_ERROR_NOT_FOUND;
	if (!samples) {
		*count = GS_SIM_SAMPLES; /* the buffer's size, whatever is new */
		return NVML_SUCCESS;
	}
	unsigned n = 0;
	for (; first <= newest && n < *count; first++, n++) {
		double load = sample_load(device, first) * (type == NVML_MEMORY_UTILIZATION_SAMPLES ? device->memory_share : 1);
		samples[n] = (nvmlSample_t){.timeStamp = sample_end(first) / 1000, .sampleValue.uiVal = lround(100 * load)};
	}
	*count = n;
	return NVML_SUCCESS;
}

static uint64_t memory_used(const struct gs_sim_device *device)
{
	uint64_t used = device->memory_reserved;
	for (unsigned i = 0; i < device->n_processes && i < GS_SIM_MAX_PROCESSES; i++)
		used += device->processes[i].memory == ~0ull || !gs_sim_present(&device->processes[i]) ? 0 : device->processes[i].memory;
	return used < device->memory_total ? used : device->memory_total;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
	DEVICE(handle, device);
	uint64_t used = memory_used(device);
	*memory = (nvmlMemory_t){.total = device->memory_total, .free = device->memory_total - used, .used = used};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
	DEVICE(handle, device);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	uint64_t used = memory_used(device);
	memory->total = device->memory_total;
	memory->reserved = device->memory_reserved;
	memory->used = used - device->memory_reserved; /* unlike version 1, without what the driver reserves */
	memory->free = device->memory_total - used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned int *clock)
{
	DEVICE(handle, device);
	if ((unsigned)type >= 4)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint64_t now = gs_sim_now();
	*clock = gs_sim_mean(device, now - SECOND / 10, now) > 0.02 ? device->clock_full[type] : device->clock_idle[type];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *milliwatts)
{
	DEVICE(handle, device);
	uint64_t now = gs_sim_now(); /* an average over one second since Ampere */
	double load = gs_sim_mean(device, now - SECOND, now);
	*milliwatts = lround(1000 * (device->power_idle + (device->power_full - device->power_idle) * load));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned int *milliwatts)
{
	DEVICE(handle, device);
	*milliwatts = lround(1000 * device->power_limit);
	return NVML_SUCCESS;
}

static int celsius(const struct gs_sim_device *device)
{
	uint64_t now = gs_sim_now();
	double load = gs_sim_mean(device, now - 20 * SECOND, now);
	return lround(device->celsius_idle + (device->celsius_full - device->celsius_idle) * load);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t sensor, unsigned int *temperature)
{
	DEVICE(handle, device);
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*temperature = celsius(device);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_t *temperature)
{
	DEVICE(handle, device);
	if (temperature->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	temperature->temperature = celsius(device);
	return NVML_SUCCESS;
}

static uint64_t pcie_bytes(const struct gs_sim_device *device, int receive, uint64_t at)
{
	double full = receive ? device->pcie_rx_full : device->pcie_tx_full;
	return device->pcie_start + (uint64_t)(full * gs_sim_integral(device, gs_sim_node()->start_unix_ns, at));
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
	DEVICE(handle, device);
	uint64_t now = gs_sim_now(), mask = device->pcie_bits >= 64 ? ~0ull : (1ull << device->pcie_bits) - 1;
	for (int i = 0; i < count; i++) {
		int receive = values[i].fieldId == NVML_FI_DEV_PCIE_COUNT_RX_BYTES;
		values[i].timestamp = now / 1000;
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		if (!device->pcie_bits || (!receive && values[i].fieldId != NVML_FI_DEV_PCIE_COUNT_TX_BYTES))
			continue;
		values[i].nvmlReturn = NVML_SUCCESS;
		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG; /* whatever its width: the type proves nothing */
		values[i].value.ullVal = pcie_bytes(device, receive, now) & mask;
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
	DEVICE(handle, device);
	uint64_t from = gs_sim_now();
	usleep(20000);
	uint64_t to = gs_sim_now();
	double full = counter == NVML_PCIE_UTIL_RX_BYTES ? device->pcie_rx_full : device->pcie_tx_full;
	*value = lround(full * gs_sim_mean(device, from, to) / 1000);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned int *generation)
{
	DEVICE(handle, device);
	*generation = device->pcie_generation;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t handle, unsigned int *width)
{
	DEVICE(handle, device);
	*width = device->pcie_width;
	return NVML_SUCCESS;
}

struct nvmlGpmSample_st {
	const struct gs_sim_device *device;
	uint64_t at;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t handle, nvmlGpmSupport_t *support)
{
	DEVICE(handle, device);
	if (support->version != NVML_GPM_SUPPORT_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = device->gpm;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	SYSTEM(node);
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	free(sample);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t handle, nvmlGpmSample_t sample)
{
	DEVICE(handle, device);
	if (!device->gpm)
		return NVML_ERROR_NOT_SUPPORTED;
	*sample = (struct nvmlGpmSample_st){device, gs_sim_now()};
	return NVML_SUCCESS;
}

static nvmlReturn_t gpm_metric(const struct gs_sim_device *device, uint64_t from, uint64_t to, nvmlGpmMetric_t *metric)
{
	double load = gs_sim_mean(device, from, to);
	switch (metric->metricId) {
	case NVML_GPM_METRIC_GRAPHICS_UTIL:
	case NVML_GPM_METRIC_SM_UTIL:
		metric->value = 100 * load;
		return NVML_SUCCESS;
	case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
		metric->value = device->pcie_tx_full * load / (1 << 20);
		return NVML_SUCCESS;
	case NVML_GPM_METRIC_PCIE_RX_PER_SEC:
		metric->value = device->pcie_rx_full * load / (1 << 20);
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
	SYSTEM(node);
	if (get->version != NVML_GPM_METRICS_GET_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct nvmlGpmSample_st *first = get->sample1, *second = get->sample2;
	if (!first || !second || first->device != second->device || !first->device || second->at < first->at + SECOND / 10)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < get->numMetrics && i < NVML_GPM_METRIC_MAX; i++)
		get->metrics[i].nvmlReturn = gpm_metric(first->device, first->at, second->at, &get->metrics[i]);
	return NVML_SUCCESS;
}
