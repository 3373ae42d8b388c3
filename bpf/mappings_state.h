/* SPDX-License-Identifier: Apache-2.0 */
/* What lies behind mappings.h, in three parts: when (mappings.c), list and verify (relist.c), to the BPF maps (publish.c). */
#ifndef GPUSTROBE_MAPPINGS_STATE_H
#define GPUSTROBE_MAPPINGS_STATE_H

#include "file_table.h"
#include "listing.h"
#include "mappings.h"
#include "process_cache.h"
#include "process_dir.h"
#include "blocks.h"
#include "jit.h"
#include "pythons.h"

#define GS_MS 1000000ULL
#define GS_SECOND 1000000000ULL

struct gs_mappings {
	struct gs_proc proc;
	struct gs_files *files;
	struct gs_tables *tables;
	struct gs_pythons *pythons;
	struct gs_jits *jits;
	int vdso; /* descriptor, -1 = none */
	struct gs_cache cache;
	struct gs_blocks blocks;
	struct gs_vma_list list;
	struct gs_mapping *scratch; /* GS_MAX_MAPPINGS rows on their way to the BPF array */
	uint32_t max_processes;
	uint64_t memory_budget;
	int no_query;
	uint64_t counters[GS_MAPPING_COUNTER_COUNT];
};

/* relist.c. Lists p and publishes what it found; *changed: it differs from the last listing. */
int gs_list_process(struct gs_mappings *m, struct gs_cached *p, uint32_t tid, uint64_t now_ns, int *changed);
int gs_listing_failed(struct gs_mappings *m, int error); /* counts it; the answer for it */
void gs_read_details(struct gs_mappings *m, struct gs_cached *p, int process); /* process -1: it is gone */

/* publish.c. tables[i] belongs to p->rows[i]. */
void gs_publish(struct gs_mappings *m, struct gs_cached *p, const uint32_t *tables, uint64_t now_ns);
void gs_withdraw(struct gs_mappings *m, struct gs_cached *p, uint64_t now_ns);
/* Withdraws tables of processes not sampled for idle_ns, oldest first, until that many rows are free or on their way. */
void gs_make_room(struct gs_mappings *m, uint32_t wanted, uint64_t idle_ns, uint64_t now_ns);

/* jit_mappings.c */
uint32_t gs_jit_table_of(struct gs_mappings *m, struct gs_cached *p, const struct gs_row *row, uint64_t now_ns);
void gs_jit_forget_process(struct gs_mappings *m, struct gs_cached *p);

#endif
