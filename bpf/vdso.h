/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSTROBE_VDSO_H
#define GPUSTROBE_VDSO_H

/* A descriptor of this process's vdso image, which is the kernel's for all 64-bit processes; -1 if there is none. */
int gs_vdso_open(void);

#endif
