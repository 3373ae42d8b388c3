// SPDX-License-Identifier: Apache-2.0
#include "process_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND 1000000000LL

/* Up to `room` bytes of a file of /proc; -errno. */
static ssize_t read_text(int directory, const char *name, char *out, size_t room)
{
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t got = 1;

	if (fd < 0)
		return -errno;
	while (used < room && got) {
		got = read(fd, out + used, room - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		used += got;
	}
	got = got < 0 && !used ? -errno : (ssize_t)used;
	close(fd);
	return got;
}

static int64_t own_boottime_offset(int root)
{
	char text[257];
	long long seconds, nanoseconds;
	ssize_t length = read_text(root, "self/timens_offsets", text, sizeof(text) - 1);
	const char *line;

	if (length <= 0)
		return 0; /* no time namespaces before Linux 5.6, or not compiled in */
	text[length] = 0;
	line = strstr(text, "boottime");
	return line && sscanf(line, "boottime %lld %lld", &seconds, &nanoseconds) == 2 ? seconds * SECOND + nanoseconds : 0;
}

int gs_proc_open(struct gs_proc *proc, const char *root)
{
	long ticks = sysconf(_SC_CLK_TCK);

	proc->root = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proc->root < 0)
		return errno;
	proc->tick_ns = ticks > 0 ? SECOND / ticks : SECOND / 100;
	proc->boottime_offset = own_boottime_offset(proc->root);
	return 0;
}

void gs_proc_close(struct gs_proc *proc)
{
	if (proc->root >= 0)
		close(proc->root);
	proc->root = -1;
}

int gs_process_open(const struct gs_proc *proc, uint32_t pid)
{
	char name[16];
	int fd;

	snprintf(name, sizeof(name), "%u", pid);
	fd = openat(proc->root, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int gs_parse_stat(const char *text, size_t length, struct gs_stamp *out)
{
	const char *at = memrchr(text, ')', length), *end = text + length;
	uint64_t value = 0;
	int field = 2, digits = 0;

	memset(out, 0, sizeof(*out));
	if (!at)
		return EBADMSG;
	for (at++; at < end; at++) {
		if (*at == ' ' || *at == '\n') {
			if (field == 22 && !digits)
				return EBADMSG;
			if (field == 22)
				out->start_ticks = value;
			if (field == 28 && digits)
				out->start_stack = value;
			field++;
			value = 0;
			digits = 0;
		} else if (*at >= '0' && *at <= '9') {
			if (++digits > 20)
				return EBADMSG;
			value = value * 10 + (*at - '0'); /* RSSLIM is 2^64-1; what overflows is no time of any process */
		} else if (field == 22) {
			return EBADMSG;
		}
	}
	return field > 28 ? 0 : EBADMSG;
}

static int stamp_of(int process, const char *name, struct gs_stamp *out)
{
	char text[1024]; /* 52 numbers and a name of 64 bytes at most */
	ssize_t length = read_text(process, name, text, sizeof(text));

	if (length <= 0)
		return length ? (int)-length : ESRCH;
	return gs_parse_stat(text, length, out);
}

int gs_process_stamp(int process, uint32_t tid, struct gs_stamp *out)
{
	struct gs_stamp thread;
	char name[32];
	int error = stamp_of(process, "stat", out);

	if (error || out->start_stack || !tid)
		return error;
	snprintf(name, sizeof(name), "task/%u/stat", tid);
	if (!stamp_of(process, name, &thread))
		out->start_stack = thread.start_stack;
	return 0;
}

int gs_process_started(const struct gs_proc *proc, uint64_t start_ticks, uint64_t start_boottime)
{
	return (start_boottime + (uint64_t)proc->boottime_offset) / proc->tick_ns == start_ticks;
}

static char *append(struct gs_process_details *out, enum gs_detail which, char *at, ssize_t length)
{
	out->length[which] = length > 0 ? (uint16_t)length : 0;
	return at + out->length[which];
}

/* The NSpid line of status: the process's PID in each PID namespace, outermost first. */
static ssize_t read_nspid(int process, char out[256])
{
	char text[8192]; /* status is 1.5 KB; Groups can make it longer */
	ssize_t length = read_text(process, "status", text, sizeof(text) - 1);
	char *line, *end;

	if (length <= 0)
		return 0;
	text[length] = 0;
	line = strstr(text, "\nNSpid:");
	end = line ? strchr(line + 1, '\n') : NULL;
	if (!end)
		return 0;
	line += strlen("\nNSpid:");
	length = end - line < 256 ? end - line : 256;
	memcpy(out, line, length);
	return length;
}

void gs_process_read_details(int process, struct gs_process_details *out)
{
	char *at = out->text;
	struct stat st;
	ssize_t length;

	out->uid = fstatat(process, "", &st, AT_EMPTY_PATH) ? UINT32_MAX : st.st_uid;
	at = append(out, GS_DETAIL_STAT, at, read_text(process, "stat", at, 1024));
	length = read_text(process, "comm", at, 64);
	at = append(out, GS_DETAIL_COMM, at, length > 0 && at[length - 1] == '\n' ? length - 1 : length);
	length = read_text(process, "cmdline", at, 4097);
	out->cmdline_cut = length > 4096;
	at = append(out, GS_DETAIL_CMDLINE, at, length > 4096 ? 4096 : length);
	at = append(out, GS_DETAIL_CGROUP, at, read_text(process, "cgroup", at, 4096));
	at = append(out, GS_DETAIL_EXE, at, readlinkat(process, "exe", at, 4095));
	append(out, GS_DETAIL_NSPID, at, read_nspid(process, at));
}
