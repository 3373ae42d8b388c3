// SPDX-License-Identifier: Apache-2.0
/* What the node sees of this process: a row among each device's processes, busy time for NVML, and collectives with other ranks. */
#include "engine.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct gs_sim_process *rows[GS_SIM_MAX_DEVICES];
static uint64_t covered[GS_SIM_MAX_DEVICES]; /* busy time up to here is entered, so that streams that overlap count once */

static void leave(void)
{
	for (int i = 0; i < GS_SIM_MAX_DEVICES; i++)
		if (rows[i] && rows[i]->pid == (uint32_t)getpid())
			rows[i]->pid = 0;
}

void gs_sim_load_start(int slot)
{
	struct gs_sim_node *node = gs_sim_node();
	struct gs_sim_device *device = &node->devices[slot];
	if (rows[slot] && rows[slot]->pid == (uint32_t)getpid())
		return;
	gs_sim_hold(&node->process_lock);
	uint32_t i = 0;
	while (i < device->n_processes && !(device->processes[i].launcher && !gs_sim_present(&device->processes[i])))
		i++;
	if (i < GS_SIM_MAX_PROCESSES) {
		struct gs_sim_process *row = rows[slot] = &device->processes[i];
		*row = (struct gs_sim_process){.pid = getpid(), .kind = GS_SIM_COMPUTE, .memory = 520ull << 20, .launcher = 1,
					       .gpu_instance = ~0u, .compute_instance = ~0u};
		snprintf(row->name, sizeof(row->name), "%s", program_invocation_name);
		if (i == device->n_processes)
			device->n_processes++;
	}
	device->launches = 1;
	gs_sim_let_go(&node->process_lock);
	static int registered;
	if (!registered++)
		atexit(leave);
}

void gs_sim_load_busy(int slot, uint64_t from_ns, uint64_t to_ns)
{
	if (gs_sim_engine.simulated_clock || to_ns <= covered[slot])
		return;
	if (from_ns < covered[slot])
		from_ns = covered[slot];
	covered[slot] = to_ns;
	gs_sim_busy(&gs_sim_node()->devices[slot], gs_sim_engine.realtime(from_ns), gs_sim_engine.realtime(to_ns));
	if (rows[slot])
		__atomic_fetch_add(&rows[slot]->busy_ns, to_ns - from_ns, __ATOMIC_RELAXED);
}

void gs_sim_load_memory(int slot, int64_t bytes)
{
	if (rows[slot])
		__atomic_fetch_add(&rows[slot]->memory, bytes, __ATOMIC_RELAXED);
}

static int has_dead(const struct gs_sim_meeting *meeting)
{
	for (uint32_t i = 0; i < meeting->came && i < GS_SIM_MAX_RANKS; i++)
		if (kill(meeting->pids[i], 0) < 0 && errno == ESRCH)
			return 1;
	return 0;
}

static struct gs_sim_meeting *meeting_of(struct gs_sim_node *node, const struct gs_sim_op *op)
{
	struct gs_sim_meeting *free = NULL;
	for (int i = 0; i < GS_SIM_MAX_COLLECTIVES; i++) {
		struct gs_sim_meeting *meeting = &node->meetings[i];
		if (!meeting->ranks || has_dead(meeting)) { /* of an earlier run that was killed */
			meeting->ranks = 0;
			free = free ? free : meeting;
		} else if (meeting->communicator == op->function->communicator && meeting->sequence == op->sequence) {
			return meeting;
		}
	}
	if (free)
		*free = (struct gs_sim_meeting){.sequence = op->sequence, .communicator = op->function->communicator,
						.ranks = op->function->ranks};
	return free;
}

uint64_t gs_sim_collective(struct gs_sim_op *op, int arriving)
{
	struct gs_sim_node *node = gs_sim_node();
	uint64_t end = 0;
	gs_sim_hold(&node->meeting_lock);
	struct gs_sim_meeting *meeting = meeting_of(node, op);
	if (meeting && arriving && meeting->came < GS_SIM_MAX_RANKS) {
		meeting->pids[meeting->came++] = getpid();
		if (op->start_ns > meeting->latest_ns)
			meeting->latest_ns = op->start_ns;
	}
	if (meeting && meeting->came >= meeting->ranks) {
		end = meeting->latest_ns + op->duration_ns;
		if (++meeting->left >= meeting->ranks)
			meeting->ranks = 0;
	}
	gs_sim_let_go(&node->meeting_lock);
	return end;
}
