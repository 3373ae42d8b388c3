/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of kernel launches, and the moments of the threads that launch: when each was where. */
#ifndef GPUSTROBE_LAUNCHES_H
#define GPUSTROBE_LAUNCHES_H

#include <linux/types.h>

#include "kernel.h"
#include "launch.h"
#include "window.h"

#define GS_MAX_PROBES 64    /* copies of the library: one a container image at most */
#define GS_MAX_MOMENTS 4096 /* threads */

struct bpf_link;
struct gs_core;
struct gs_sample;

struct gs_launches {
	struct bpf_object *object;
	struct bpf_link *links[GS_MAX_PROBES];
	uint32_t n_links;
	int ring, counters; /* descriptors; -1: none */
	int n_cpus;
	uint64_t map_bytes;
	struct gs_launch_counters *per_cpu;
	struct gs_window_rows rows, moments; /* of the running window */
	uint64_t lost, moments_lost;
	uint32_t n_watched;
	uint32_t watched[GS_MAX_MOMENTS]; /* sorted */
};

/* NULL and *error. With GS_OPTION_NO_KERNEL nothing is loaded. */
struct gs_launches *gs_launches_open(struct gs_core *core, const struct gs_options *options, struct gs_error *error);
void gs_launches_close(struct gs_launches *l);
/* 0, or an errno; ENOSPC: no place for another file. */
int gs_launches_attach(struct gs_launches *l, const char *path, const char *function);
void gs_launches_detach(struct gs_launches *l);
int gs_launches_counters(struct gs_launches *l, struct gs_launch_counters *sum); /* 0, or -1: nothing has changed */
void gs_launches_watch(struct gs_launches *l, const uint32_t *tids, uint32_t n);

/* One record of the ring, of whatever content. */
void gs_launches_record(struct gs_core *core, const void *data, uint64_t length);
/* A sample or a wait, if its thread is watched. */
void gs_moment(struct gs_core *core, uint32_t tid, uint32_t stack, uint32_t thread, uint64_t time_ns, uint64_t lasted);

#endif
