/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "timers.h"

int gs_idle_times(uint64_t *idle_ns, int n_cpus)
{
	FILE *file = fopen("/proc/stat", "re");
	uint64_t tick = 1000000000ULL / sysconf(_SC_CLK_TCK);
	unsigned long long idle, wait;
	char line[512];
	int cpu;

	memset(idle_ns, 0, n_cpus * sizeof(*idle_ns));
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file) && !strncmp(line, "cpu", 3)) /* the CPUs come first; "cpu " is their sum */
		if (sscanf(line, "cpu%d %*u %*u %*u %llu %llu", &cpu, &idle, &wait) == 3 && cpu >= 0 && cpu < n_cpus)
			idle_ns[cpu] = (idle + wait) * tick;
	fclose(file);
	return 0;
}
