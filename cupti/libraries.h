/* SPDX-License-Identifier: Apache-2.0 */
/* The process's own libcuda and libcupti. Nothing is called in them here, and libcuda is never loaded by us. */
#ifndef GPUSTROBE_LIBRARIES_H
#define GPUSTROBE_LIBRARIES_H

#include "abi.h"
#include "ring.h"

/* libcuda.so.1, if it is mapped. 0, or no_driver. */
enum gs_reason gs_find_driver(struct gs_driver *driver);

struct gs_found {
	char path[256];
	char soname[64];
	uint8_t mapped; /* it was there before us */
	char missing[64]; /* the function that it lacks */
};

/* The libcupti that is mapped; else the one of cudart's major number (else the driver's, `driver_major`), searched as the
 * loader does, beside cudart, and where NVIDIA's installers put it. 0, no_cupti or cupti_symbol. */
enum gs_reason gs_find_cupti(struct gs_cupti *cupti, struct gs_found *found, unsigned driver_major);

#endif
