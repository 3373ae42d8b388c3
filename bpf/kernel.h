/* SPDX-License-Identifier: Apache-2.0 */
/* The loaded sampler: its object, maps and counters. */
#ifndef GPUSTROBE_KERNEL_H
#define GPUSTROBE_KERNEL_H

#include <linux/types.h>

#include "config.h"
#include "core.h"

struct bpf_object;
struct bpf_program;

struct gs_kernel {
	struct bpf_object *object;
	struct gs_config config; /* as all our programs were given it */
	int profile;  /* descriptors */
	int ring;
	int counters;
	int procs;
	int mappings;
	int watched;
	int tables, words, rules, pythons;
	int stats;       /* -1: not enabled */
	int tracepoints[2];
	int n_cpus;      /* possible */
	uint32_t n_procs;
	uint32_t mapping_rows;
	uint32_t n_tables, n_words, n_rules;
	uint64_t map_bytes;
	struct gs_cpu_counters *per_cpu; /* n_cpus, as last read */
};

/* 0, or -1 and *error; *k can be closed either way. */
int gs_kernel_open(struct gs_kernel *k, const struct gs_options *options, struct gs_error *error);
void gs_kernel_close(struct gs_kernel *k);

/* Reads per_cpu, and sums over CPUs. 0, or -1: then nothing has changed. */
int gs_kernel_counters(struct gs_kernel *k, struct gs_cpu_counters *sum);

struct gs_run_times {
	uint64_t time_ns, runs, verified;
};
/* Of all programs of an object; `runs` is the entry's. */
struct gs_run_times gs_run_times(struct bpf_object *object, const char *entry);

/* Loads another object with the sampler's configuration; `arrange` sets its maps before. 0, or -1 and *error. */
int gs_kernel_load_beside(const struct gs_kernel *k, const char *path, int (*arrange)(struct bpf_object *, const struct gs_kernel *),
			  struct bpf_object **object, struct gs_error *error);
int gs_raw_tracepoint(const char *name, int program); /* a descriptor; -1 with errno */
uint32_t gs_power_of_two(uint64_t each, uint64_t times); /* bytes of a ring: each x times, rounded up, bounded */

#endif
