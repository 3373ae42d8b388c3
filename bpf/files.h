/* SPDX-License-Identifier: Apache-2.0 */
/* Files seen mapped as executable, each under a 20-bit id for as long as its content stays the same.
 *
 * A file is known by the (device, inode) that /proc/PID/maps and bpf_find_vma show, told apart further by fstat of the opened
 * file: on btrfs and overlayfs the two devices differ, and a btrfs inode number repeats in each snapshot. A later process
 * that maps the same (device, inode) with another ctime gets the same id only if size, mtime and build id say it is the same
 * content (an unlink or chmod also moves ctime); else a new id, since ext4 hands a freed inode number to the next file at once.
 *
 * Not thread-safe: one thread at a time. */
#ifndef GPUSTROBE_FILES_H
#define GPUSTROBE_FILES_H

#include <stdint.h>

#include "core.h"

#define GS_FILE_PATH_MAX 4096
#define GS_BUILD_ID_MAX 32 /* GNU build ids are 20 (sha1) or 16 bytes (md5, uuid); lld can write 8, anything past 32 is refused */

/* Why a file has no build id. X(name, what a person reads) */
#define GS_BUILD_ID_REASONS(X) \
	X(found, "") \
	X(not_opened, "the file could not be opened") \
	X(unreadable, "the file could not be read") \
	X(not_elf, "not a 64-bit little-endian ELF file") \
	X(truncated, "the file ends before what its header announces") \
	X(corrupt, "a length or offset in the ELF file is impossible") \
	X(no_note, "linked without a build id")
enum gs_build_id_reason {
#define X(name, text) GS_BUILD_ID_##name,
	GS_BUILD_ID_REASONS(X)
#undef X
	GS_BUILD_ID_REASON_COUNT
};

enum gs_file_flag {
	GS_FILE_DELETED = 1, /* unlinked when it was first seen; path is without " (deleted)" */
	GS_FILE_MEMFD = 2,   /* memfd_create: path is "/memfd:NAME" */
	GS_FILE_AGAIN = 4,   /* announced before, in an earlier epoch */
};

struct gs_build_id {
	uint8_t length; /* bytes, 0 = none */
	uint8_t reason; /* enum gs_build_id_reason */
	uint8_t bytes[GS_BUILD_ID_MAX];
};

/* What Python is told about a file, once an epoch. */
struct gs_file_record {
	uint32_t file_id;
	int32_t fd; /* O_RDONLY | O_CLOEXEC, owned by whoever takes the record; -1: open_errno says why */
	int32_t open_errno;
	uint32_t flags;  /* enum gs_file_flag */
	uint32_t pid;    /* a process that maps it, host PID */
	uint32_t device; /* as maps shows it: major << 20 | minor */
	uint64_t inode;
	uint64_t size; /* bytes */
	int64_t mtime_ns;
	int64_t ctime_ns;
	struct gs_build_id build_id;
	uint16_t path_length;
	char path[GS_FILE_PATH_MAX]; /* bytes as the kernel shows them, NUL at the end */
};

/* The GNU build id of an open ELF64 little-endian file, by its PT_NOTE program headers. Reads at most 32 KB, never more than
 * the file has, and trusts no length in it. */
GS_API struct gs_build_id gs_read_build_id(int fd);

#endif
