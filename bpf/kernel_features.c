/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_features.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A program of one call with no arguments set up never loads; an unknown helper is refused with other words than a known one.
 * Raw bpf(2): libbpf_probe_bpf_helper is newer than the libbpf 0.5 of Ubuntu 22.04. */
int gs_has_helper(int helper)
{
	struct bpf_insn program[] = {
		{ .code = BPF_JMP | BPF_CALL, .imm = helper },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	char log[4096] = "";
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_PERF_EVENT;
	attr.insns = (unsigned long)program;
	attr.insn_cnt = 2;
	attr.license = (unsigned long)"GPL";
	attr.log_buf = (unsigned long)log;
	attr.log_size = sizeof(log);
	attr.log_level = 1;

	int fd = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));

	if (fd >= 0) {
		close(fd);
		return 1;
	}
	return log[0] && !strstr(log, "invalid func ") && !strstr(log, "unknown func ") && !strstr(log, "cannot use helper");
}

unsigned long long gs_fd_memory(int fd)
{
	char path[64], line[256];
	unsigned long long bytes = 0;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);

	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "memlock: %llu", &bytes) == 1)
			break;
	fclose(file);
	return bytes;
}

int gs_enable_stats(void)
{
	return bpf_enable_stats(BPF_STATS_RUN_TIME);
}
