/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at, and opening, the file behind one mapping of one process, in whatever mount namespace and deleted or not. */
#ifndef GPUSTROBE_MAPPED_FILE_H
#define GPUSTROBE_MAPPED_FILE_H

#include <stdint.h>

#include "listing.h"

/* Where a file was seen. list and vma may be NULL: then only map_files is tried, by start and end. */
struct gs_sight {
	int process; /* descriptor of /proc/PID */
	uint32_t pid;
	uint64_t start_boottime;
	uint64_t start;
	uint64_t end;
	uint64_t inode;  /* as maps shows them */
	uint32_t device;
	const struct gs_vma_list *list;
	const struct gs_vma *vma;
};

struct gs_identity {
	uint64_t device; /* as fstat shows them: on btrfs and old overlayfs not what maps shows */
	uint64_t inode;
	uint64_t size;
	int64_t mtime_ns;
	int64_t ctime_ns;
	uint32_t links;
	uint32_t regular;
};

/* 0 or an errno; never talks to a network file system's server. */
int gs_mapped_stat(const struct gs_sight *sight, struct gs_identity *out);

/* A descriptor and what fstat says of it, or -errno; ENOTSUP: not a regular file (devices are not opened: that can act). */
int gs_mapped_open(const struct gs_sight *sight, struct gs_identity *out, int *by_path);

/* Whether `path`, seen from the process or from here, is the mapped file. */
int gs_mapped_at_path(const struct gs_sight *sight, const char *path);

#endif
