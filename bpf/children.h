/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSTROBE_CHILDREN_H
#define GPUSTROBE_CHILDREN_H

#include "core.h"
#include "kernel.h"

/* Fills the map `watched` with the PIDs of the options and, if asked, with the processes they have already started. Call with
 * the fork tracepoint attached: a process started meanwhile is added by its parent's entry. 0, or -1 and *error. */
int gs_watch(struct gs_kernel *k, const struct gs_options *options, struct gs_error *error);

#endif
