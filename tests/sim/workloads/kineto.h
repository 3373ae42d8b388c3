/* SPDX-License-Identifier: Apache-2.0 */
/* A user's own profiler, as Kineto uses CUPTI: the old one subscribes for its session and gives up for good if it cannot; the new
 * one (since August 2026) uses activity records only. Its trace must be the same whether gpustrobe is there or not. */
#ifndef GS_SIM_KINETO_H
#define GS_SIM_KINETO_H

/* `old`: subscribes. 0: recording; else the CUptiResult that stopped it. */
int kineto_start(const char *libcupti, int old);
/* Writes one line a record, "KIND CORRELATION START END BYTES NAME" in order of start, and returns how many; -1: not recording. */
int kineto_stop(const char *path);

#endif
