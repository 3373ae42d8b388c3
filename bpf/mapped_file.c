// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DELETED " (deleted)"

static int look(int directory, const char *name, int flags, struct gs_identity *out)
{
	struct statx st;

	if (statx(directory, name, flags | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &st))
		return errno;
	*out = (struct gs_identity){
		.device = (uint64_t)st.stx_dev_major << 20 | st.stx_dev_minor,
		.inode = st.stx_ino,
		.size = st.stx_size,
		.mtime_ns = st.stx_mtime.tv_sec * 1000000000LL + st.stx_mtime.tv_nsec,
		.ctime_ns = st.stx_ctime.tv_sec * 1000000000LL + st.stx_ctime.tv_nsec,
		.links = st.stx_nlink,
		.regular = S_ISREG(st.stx_mode),
	};
	return 0;
}

/* A path from maps may lead anywhere by now. Same inode number, and the same device or two devices without hardware behind
 * them (btrfs shows a subvolume's in stat, the file system's in maps). */
static int is_mapped(const struct gs_sight *sight, const struct gs_identity *found)
{
	return found->inode == sight->inode && (found->device == sight->device || (found->device >> 20 == 0 && sight->device >> 20 == 0));
}

/* O_PATH opens nothing: no device acts, no FIFO blocks. Links that leave the process's root end inside it. */
static int find_below(int root, const char *path)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};

	return root < 0 ? -1 : (int)syscall(SYS_openat2, root, path, &how, sizeof(how));
}

static int find_in(const struct gs_sight *sight, int directory, const char *name, const char *path, struct gs_identity *out)
{
	int root = openat(directory, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = find_below(root, path);

	if (root >= 0)
		close(root);
	if (fd >= 0 && (look(fd, "", AT_EMPTY_PATH, out) || !is_mapped(sight, out))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Below /proc/PID/root; for a process that called chroot, maps shows the path from the mount namespace's root instead. */
static int find_by_path(const struct gs_sight *sight, const char *path, struct gs_identity *out)
{
	int fd = find_in(sight, sight->process, "root", path, out);

	return fd >= 0 ? fd : find_in(sight, AT_FDCWD, "/", path, out);
}

static int find_listed(const struct gs_sight *sight, struct gs_identity *out)
{
	char path[GS_FILE_PATH_MAX];
	int length = sight->list ? gs_list_path(sight->list, sight->vma, path) : -1;
	const int suffix = sizeof(DELETED) - 1;
	int fd;

	if (length <= 0 || path[0] != '/')
		return -1;
	fd = find_by_path(sight, path, out);
	if (fd < 0 && length > suffix && !strcmp(path + length - suffix, DELETED)) { /* another hard link, or put back */
		path[length - suffix] = 0;
		fd = find_by_path(sight, path, out);
	}
	return fd;
}

static void map_files_name(const struct gs_sight *sight, char out[64])
{
	snprintf(out, 64, "map_files/%" PRIx64 "-%" PRIx64, sight->start, sight->end);
}

int gs_mapped_stat(const struct gs_sight *sight, struct gs_identity *out)
{
	char name[64];
	int fd, error;

	map_files_name(sight, name);
	error = look(sight->process, name, 0, out);
	if (!error)
		return 0;
	fd = find_listed(sight, out);
	if (fd < 0)
		return error;
	close(fd);
	return 0;
}

static int open_by_path(const struct gs_sight *sight, struct gs_identity *out)
{
	int at = find_listed(sight, out), fd;
	char name[32];

	if (at < 0 || !out->regular) {
		if (at >= 0)
			close(at);
		return at < 0 ? -ENOENT : -ENOTSUP;
	}
	snprintf(name, sizeof(name), "/proc/self/fd/%d", at);
	fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		fd = -errno;
	close(at);
	return fd;
}

static int open_by_map_files(const struct gs_sight *sight, struct gs_identity *out)
{
	char name[64];
	int error, fd;

	map_files_name(sight, name);
	error = look(sight->process, name, 0, out);
	if (error || !out->regular)
		return error ? -error : -ENOTSUP;
	fd = openat(sight->process, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	return fd < 0 ? -errno : fd;
}

int gs_mapped_open(const struct gs_sight *sight, struct gs_identity *out, int *by_path)
{
	int fd = open_by_map_files(sight, out), error, other;

	*by_path = 0;
	if (fd < 0 && fd != -ENOTSUP && fd != -EMFILE && fd != -ENFILE) {
		other = open_by_path(sight, out);
		*by_path = other >= 0;
		if (other >= 0 || other == -ENOTSUP)
			fd = other;
	}
	if (fd >= 0 && (error = look(fd, "", AT_EMPTY_PATH, out))) {
		close(fd);
		fd = -error;
	}
	return fd;
}

int gs_mapped_at_path(const struct gs_sight *sight, const char *path)
{
	struct gs_identity found;
	int fd = find_by_path(sight, path, &found);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}
