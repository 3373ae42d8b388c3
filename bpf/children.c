/* SPDX-License-Identifier: Apache-2.0 */
#include "children.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

static int watch(struct gs_kernel *k, uint32_t tgid)
{
	uint64_t whichever = 0;

	return bpf_map_update_elem(k->watched, &tgid, &whichever, BPF_NOEXIST) && errno != EEXIST ? -1 : 0;
}

/* Parent of a process, 0 if it is gone. The name in parentheses may hold anything, so look from its end. */
static uint32_t parent_of(const char *proc_root, uint32_t pid)
{
	char path[4200], text[512];
	uint32_t parent = 0;

	snprintf(path, sizeof(path), "%s/%u/stat", proc_root, pid);

	FILE *file = fopen(path, "re");

	if (!file)
		return 0;

	size_t n = fread(text, 1, sizeof(text) - 1, file);

	fclose(file);
	text[n] = 0;

	const char *end = strrchr(text, ')');

	return end && sscanf(end, ") %*c %u", &parent) == 1 ? parent : 0;
}

/* One look at all processes: how many children of watched ones were added, or -1. */
static int add_children(struct gs_kernel *k, const char *proc_root)
{
	DIR *proc = opendir(proc_root);
	int added = 0;

	if (!proc)
		return -1;
	for (struct dirent *entry; (entry = readdir(proc));) {
		char *end;
		uint32_t pid = (uint32_t)strtoul(entry->d_name, &end, 10);
		uint64_t since;

		if (!pid || *end || !bpf_map_lookup_elem(k->watched, &pid, &since))
			continue;

		uint32_t parent = parent_of(proc_root, pid);

		if (parent && !bpf_map_lookup_elem(k->watched, &parent, &since)) {
			if (watch(k, pid)) {
				added = -1;
				break;
			}
			added++;
		}
	}
	closedir(proc);
	return added;
}

int gs_watch(struct gs_kernel *k, const struct gs_options *options, struct gs_error *error)
{
	int added = 1;

	if (!(options->flags & GS_OPTION_FILTER))
		return 0;
	for (uint32_t i = 0; i < options->n_pids; i++)
		if (watch(k, options->pids[i]))
			return gs_fail(error, GS_FAULT_load, errno, "PID %u could not be watched: %s", options->pids[i], strerror(errno));
	if (!(options->flags & GS_OPTION_CHILDREN))
		return 0;
	while (added > 0)
		added = add_children(k, options->proc_root);
	if (added < 0)
		return gs_fail(error, GS_FAULT_load, errno, "the processes started by PID %u could not be listed: %s", options->pids[0],
			       strerror(errno));
	return 0;
}
