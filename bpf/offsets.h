/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSTROBE_OFFSETS_H
#define GPUSTROBE_OFFSETS_H

#include <linux/types.h>

#include "config.h"
#include "core.h"

/* From the running kernel's BTF. 0, or -1 and *error. Fields only the hint needs are 0 where they are missing. */
int gs_offsets_from_btf(struct gs_offsets *offsets, struct gs_error *error);

uint32_t gs_task_state_offset(void); /* task_struct.__state, .state before 5.14; 0 where the kernel has no BTF */

#endif
