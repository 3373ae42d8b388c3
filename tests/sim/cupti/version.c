// SPDX-License-Identifier: Apache-2.0
#include <stdint.h>

extern const uint32_t gs_sim_cupti_version;
const uint32_t gs_sim_cupti_version = VERSION;
