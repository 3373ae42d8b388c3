// SPDX-License-Identifier: Apache-2.0
/* Prints the layout of node.h, one "structure field offset" a line, for the test that compares simulated_node.py with it. */
#include "node.h"

#include <stddef.h>
#include <stdio.h>

#define FIELD(type, field) printf(#type " " #field " %zu\n", offsetof(struct type, field))
#define SIZE(type) printf(#type " . %zu\n", sizeof(struct type))

int main(void)
{
	SIZE(gs_sim_point); SIZE(gs_sim_process); SIZE(gs_sim_device); SIZE(gs_sim_fault); SIZE(gs_sim_calls); SIZE(gs_sim_node);
	FIELD(gs_sim_process, memory); FIELD(gs_sim_process, share); FIELD(gs_sim_process, name);
	FIELD(gs_sim_device, memory_total); FIELD(gs_sim_device, power_limit); FIELD(gs_sim_device, clock_full);
	FIELD(gs_sim_device, pcie_start); FIELD(gs_sim_device, pcie_bits); FIELD(gs_sim_device, gpm); FIELD(gs_sim_device, mig);
	FIELD(gs_sim_device, period_ns); FIELD(gs_sim_device, points); FIELD(gs_sim_device, processes);
	FIELD(gs_sim_fault, device); FIELD(gs_sim_fault, delay_ms); FIELD(gs_sim_fault, remaining);
	FIELD(gs_sim_node, start_unix_ns); FIELD(gs_sim_node, cuda_version); FIELD(gs_sim_node, faults);
	FIELD(gs_sim_node, calls); FIELD(gs_sim_node, devices);
	SIZE(gs_sim_bucket); SIZE(gs_sim_meeting);
	FIELD(gs_sim_process, launcher); FIELD(gs_sim_device, launches); FIELD(gs_sim_device, buckets); FIELD(gs_sim_node, meetings);
	return 0;
}
