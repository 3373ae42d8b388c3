/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSTROBE_ERROR_H
#define GPUSTROBE_ERROR_H

#include "core.h"

/* Fills in *error; returns -1, so that a failing function can end with it. */
__attribute__((format(printf, 4, 5))) int gs_fail(struct gs_error *error, enum gs_fault fault, int number, const char *format, ...);

#endif
