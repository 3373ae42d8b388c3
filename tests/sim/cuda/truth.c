// SPDX-License-Identifier: Apache-2.0
/* What really happened, for tests to check against: SIM_TRUTH names a file, each process writes FILE.PID (truth.py reads it).
 * The file is mapped, so what a killed process had done by then is in it. */
#include "engine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK (1u << 16) /* rows mapped at a time */

/* Times are CLOCK_MONOTONIC ns; realtime_offset is what CUPTI's timestamps have on top. */
struct row {
	uint64_t api_ns, start_ns, end_ns, bytes, node_id, realtime_offset;
	uint32_t kind, device, context, stream, correlation, tid, name, graph, record, type;
	uint32_t grid[3], block[3];
};
_Static_assert(sizeof(struct row) == 112, "truth.py reads 112 bytes");

static int file = -1, names = -1;
static uint64_t rows;
static struct row *window;
static uint32_t n_names;
static const char *known[4096];

static void start(void)
{
	static int begun;
	char path[4096];
	const char *base = getenv("SIM_TRUTH");
	if (begun++ || !base)
		return;
	snprintf(path, sizeof(path), "%s.%d", base, getpid());
	file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	strncat(path, ".names", sizeof(path) - strlen(path) - 1);
	names = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
	if (file < 0 || names < 0)
		fprintf(stderr, "simulated libcuda: cannot write %s\n", path);
}

/* 1 and up: line of the names file; names are interned, so the pointer tells. */
static uint32_t name_of(const char *name)
{
	if (!name)
		return 0;
	for (uint32_t probe = ((uintptr_t)name >> 4) & 4095, i = 0; i < 4096; i++, probe = (probe + 1) & 4095) {
		static uint32_t numbers[4096];
		if (known[probe] == name)
			return numbers[probe];
		if (known[probe])
			continue;
		known[probe] = name;
		numbers[probe] = ++n_names;
		dprintf(names, "%s\n", name);
		return n_names;
	}
	return 0;
}

static struct row *next_row(void)
{
	start();
	if (file < 0)
		return NULL;
	if (rows % CHUNK == 0) {
		if (window)
			munmap(window, CHUNK * sizeof(*window));
		off_t at = rows * sizeof(*window);
		window = ftruncate(file, at + CHUNK * sizeof(*window)) < 0 ? MAP_FAILED
			: mmap(NULL, CHUNK * sizeof(*window), PROT_READ | PROT_WRITE, MAP_SHARED, file, at);
		if (window == MAP_FAILED) {
			window = NULL;
			file = -1;
			return NULL;
		}
	}
	struct row *row = &window[rows++ % CHUNK];
	row->realtime_offset = gs_sim_engine.realtime(0);
	return row;
}

void gs_sim_truth(const struct gs_sim_op *op, int kind)
{
	struct row *row = next_row();
	if (!row)
		return;
	row->api_ns = op->api_ns;
	row->start_ns = op->start_ns;
	row->end_ns = op->end_ns;
	row->bytes = op->bytes;
	row->node_id = op->node_id;
	row->device = op->stream->context->slot;
	row->context = op->stream->context->id;
	row->stream = op->stream->id;
	row->correlation = op->correlation;
	row->tid = op->tid;
	row->name = op->function ? name_of(op->function->name) : 0;
	row->graph = op->launch ? op->launch->graph_id : 0;
	row->record = op->record;
	row->type = op->copy_kind;
	memcpy(row->grid, op->grid, sizeof(row->grid));
	memcpy(row->block, op->block, sizeof(row->block));
	row->kind = kind;
}

void gs_sim_truth_launch(const struct gs_sim_launch *launch)
{
	struct row *row = next_row();
	if (!row)
		return;
	row->api_ns = launch->api_ns;
	row->start_ns = launch->start_ns;
	row->end_ns = launch->end_ns;
	row->device = launch->stream->context->slot;
	row->context = launch->stream->context->id;
	row->stream = launch->stream->id;
	row->correlation = launch->correlation;
	row->tid = launch->tid;
	row->graph = launch->graph_id;
	row->record = launch->record;
	row->kind = GS_SIM_GRAPH;
}

void gs_sim_truth_wait(const struct gs_sim_wait *wait)
{
	struct row *row = next_row();
	if (!row)
		return;
	row->api_ns = row->start_ns = wait->begin_ns;
	row->end_ns = wait->end_ns;
	row->device = wait->context->slot;
	row->context = wait->context->id;
	row->stream = wait->stream;
	row->correlation = wait->correlation;
	row->tid = wait->tid;
	row->type = wait->type;
	row->kind = GS_SIM_SYNC;
}
