/* SPDX-License-Identifier: Apache-2.0 */
/* Which API calls launch something, by the names CUPTI gives its callback ids: ids are never guessed from a header. */
#ifndef GPUSTROBE_CALLS_H
#define GPUSTROBE_CALLS_H

#include "abi.h"
#include "ring.h"

#define GS_MOST_CBIDS 2048 /* 13.5 has 810 for the driver, 530 for the runtime */

struct gs_calls {
	uint8_t kind[2][GS_MOST_CBIDS]; /* [0] driver, [1] runtime: enum gs_call or 0 */
	uint16_t listed[512];           /* those that are not 0: domain index << 15 | cbid */
	uint32_t n_listed;
};

/* "cudaLaunchKernel_ptsz_v7000", "cuMemcpyHtoDAsync_v2" -> enum gs_call, or 0. */
enum gs_call gs_call_of(const char *name);

void gs_calls_list(struct gs_calls *calls, const struct gs_cupti *cupti);

#endif
