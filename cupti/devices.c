/* SPDX-License-Identifier: Apache-2.0 */
#include "devices.h"

/* CUdevice_attribute, cuda.h */
enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

static uint32_t attribute(const struct gs_driver *driver, int which, int device)
{
	int value = -1;
	if (!driver->attribute || driver->attribute(&value, which, device))
		return ~0u;
	return (uint32_t)value;
}

static void announce(const struct gs_driver *driver, struct gs_names *names, int ordinal)
{
	int device = ordinal;
	char name[256] = "";
	size_t memory = 0;
	struct gs_device record = {.type = GS_RECORD_DEVICE, .ordinal = (uint32_t)ordinal};
	if (driver->device && driver->device(&device, ordinal))
		return;
	/* v2 gives the UUID of the MIG instance where there is one, as NVML and CUDA_VISIBLE_DEVICES name it */
	if (driver->uuid)
		driver->uuid(record.uuid, device);
	else if (driver->uuid_old)
		driver->uuid_old(record.uuid, device);
	if (driver->device_name && !driver->device_name(name, sizeof name - 1, device))
		record.name = gs_string_id(names, name, 1);
	if (driver->memory && !driver->memory(&memory, device))
		record.memory = memory;
	record.flags = strstr(name, "MIG") != NULL;
	record.pci_domain = attribute(driver, PCI_DOMAIN, device);
	record.pci_bus = attribute(driver, PCI_BUS, device);
	record.pci_device = attribute(driver, PCI_DEVICE, device);
	uint32_t major = attribute(driver, CAPABILITY_MAJOR, device), minor = attribute(driver, CAPABILITY_MINOR, device);
	record.capability = major == ~0u || minor == ~0u ? 0 : major * 10 + minor;
	gs_ring_push(names->ring, &record, 1);
}

unsigned gs_announce_devices(const struct gs_driver *driver, struct gs_names *names)
{
	int count = 0;
	if (driver->device_count(&count) || count < 0)
		return 0;
	for (int ordinal = 0; ordinal < count && ordinal < 64; ordinal++)
		announce(driver, names, ordinal);
	return (unsigned)count;
}
