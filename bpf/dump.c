/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the task iterator of bpf/dump.bpf.c once. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/types.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dump.h"
#include "error.h"

static int no_print(enum libbpf_print_level level, const char *format, va_list arguments)
{
	return 0;
}

static int set_target(struct bpf_object *object, uint32_t tgid)
{
	struct bpf_map *map;

	bpf_object__for_each_map(map, object) {
		const char *name = bpf_map__name(map), *dot = strrchr(name, '.');

		if (dot && !strcmp(dot, ".rodata"))
			return bpf_map__set_initial_value(map, &tgid, sizeof(tgid));
	}
	return -ENOENT;
}

/* Bytes read into `out` (whole structs), or -1 and *error. */
static int64_t read_all(struct bpf_program *program, void *out, uint64_t room, struct gs_error *error)
{
	struct bpf_link *link = bpf_program__attach_iter(program, NULL);
	int fd = libbpf_get_error(link) ? -1 : bpf_iter_create(bpf_link__fd(link));
	uint64_t have = 0;
	ssize_t n = fd < 0 ? -1 : 0;

	while (fd >= 0 && have < room && ((n = read(fd, (char *)out + have, room - have)) > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))))
		have += n > 0 ? n : 0;

	int number = errno;

	if (fd >= 0)
		close(fd);
	if (!libbpf_get_error(link))
		bpf_link__destroy(link);
	if (n < 0)
		return gs_fail(error, GS_FAULT_load, number, "the task iterator: %s", strerror(number));
	return (int64_t)(have - have % sizeof(struct gs_dump_thread));
}

static int64_t load_and_read(struct bpf_object *object, uint32_t tgid, void *out, uint64_t room, struct gs_error *error)
{
	int failed = set_target(object, tgid);

	if (failed || (failed = bpf_object__load(object)))
		return gs_fail(error, failed == -EPERM ? GS_FAULT_permission : GS_FAULT_load, -failed,
			       "the kernel refused the task iterator (Linux 5.15 has what it needs): %s", strerror(-failed));
	return read_all(bpf_object__find_program_by_name(object, "dump"), out, room, error);
}

/* Threads of process `tgid` (a host PID) as struct gs_dump_thread; bytes written, or -1 and *error. */
GS_API int64_t gs_dump(const char *object_path, uint32_t tgid, void *out, uint64_t room, struct gs_error *error);
int64_t gs_dump(const char *object_path, uint32_t tgid, void *out, uint64_t room, struct gs_error *error)
{
	libbpf_print_fn_t before = libbpf_set_print(no_print);
	struct bpf_object *object = bpf_object__open_file(object_path, NULL);
	long failed = libbpf_get_error(object);
	int64_t bytes;

	if (failed) {
		bytes = gs_fail(error, GS_FAULT_object, -(int)failed, "%s: %s", object_path, strerror(-(int)failed));
	} else {
		bytes = load_and_read(object, tgid, out, room, error);
		bpf_object__close(object);
	}
	libbpf_set_print(before);
	return bytes;
}
