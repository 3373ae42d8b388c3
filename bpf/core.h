/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of core.so, as bpf/loader.py declares it to ctypes. */
#ifndef GPUSTROBE_CORE_H
#define GPUSTROBE_CORE_H

#define GS_API __attribute__((visibility("default")))
#define GS_CORE_VERSION 1

GS_API unsigned gs_core_version(void);

#endif
