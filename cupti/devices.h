/* SPDX-License-Identifier: Apache-2.0 */
/* Announces the process's GPUs: ordinal -> UUID. */
#ifndef GPUSTROBE_DEVICES_H
#define GPUSTROBE_DEVICES_H

#include "abi.h"
#include "names.h"

/* Writes a DEVICE record for each; returns how many there are. The driver is initialized. */
unsigned gs_announce_devices(const struct gs_driver *driver, struct gs_names *names);

#endif
