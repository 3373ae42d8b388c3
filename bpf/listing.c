// SPDX-License-Identifier: Apache-2.0
#include "listing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* include/uapi/linux/fs.h, Linux 6.11; spelled out because build machines have older headers. */
struct procmap_query {
	uint64_t size;
	uint64_t query_flags;
	uint64_t query_addr;
	uint64_t vma_start;
	uint64_t vma_end;
	uint64_t vma_flags;
	uint64_t vma_page_size;
	uint64_t vma_offset;
	uint64_t inode;
	uint32_t dev_major;
	uint32_t dev_minor;
	uint32_t vma_name_size;
	uint32_t build_id_size;
	uint64_t vma_name_addr;
	uint64_t build_id_addr;
};
_Static_assert(sizeof(struct procmap_query) == 104, "the size is part of the ioctl's number");
#define QUERY_IOCTL _IOWR('f', 17, struct procmap_query)
enum { VMA_WRITABLE = 2, VMA_EXECUTABLE = 4, COVERING_OR_NEXT = 16 };

static struct gs_vma *append(struct gs_vma_list *list)
{
	if (list->count == list->room) {
		uint32_t room = list->room ? list->room * 2 : 256;
		struct gs_vma *grown = list->count < GS_LISTING_MAX ? realloc(list->vmas, room * sizeof(*grown)) : NULL;

		if (!grown)
			return NULL;
		list->vmas = grown;
		list->room = room;
	}
	return memset(&list->vmas[list->count++], 0, sizeof(struct gs_vma));
}

static int query(int fd, struct procmap_query *q)
{
	int result;

	q->size = sizeof(*q);
	do
		result = ioctl(fd, QUERY_IOCTL, q);
	while (result && errno == EINTR);
	return result ? errno : 0;
}

static int query_name(int fd, const struct gs_vma *vma, char out[GS_FILE_PATH_MAX])
{
	struct procmap_query q = {.query_addr = vma->start, .vma_name_size = GS_FILE_PATH_MAX, .vma_name_addr = (uintptr_t)out};

	if (query(fd, &q) || q.vma_start != vma->start || q.vma_end != vma->end || q.inode != vma->inode)
		return -1;
	if (!q.vma_name_size)
		out[0] = 0;
	out[GS_FILE_PATH_MAX - 1] = 0;
	return (int)strlen(out);
}

/* A name costs as much as a mapping, so only those that can be the vdso are asked for it: of no file, not writable, from the
 * top, where the kernel puts it. JIT code can leave hundreds below. */
static void find_vdso(int fd, struct gs_vma_list *list)
{
	char name[GS_FILE_PATH_MAX];
	int tries = 16;

	for (uint32_t i = list->count; i-- && tries;) {
		struct gs_vma *vma = &list->vmas[i];

		if (vma->inode || vma->flags & GS_VMA_WRITABLE)
			continue;
		tries--;
		if (query_name(fd, vma, name) > 0 && !strcmp(name, "[vdso]")) {
			vma->flags |= GS_VMA_VDSO;
			return;
		}
	}
}

static int list_by_query(int fd, struct gs_vma_list *list)
{
	uint64_t at = 0;

	for (;;) {
		struct procmap_query q = {.query_addr = at, .query_flags = COVERING_OR_NEXT | VMA_EXECUTABLE};
		struct gs_vma *vma;
		int error = query(fd, &q);

		if (error == ENOENT)
			break;
		if (error)
			return error;
		if (q.vma_end <= at || q.vma_start >= q.vma_end)
			return EPROTO; /* never seen; an endless loop otherwise */
		at = q.vma_end;
		vma = append(list);
		if (!vma && list->count < GS_LISTING_MAX)
			return ENOMEM;
		if (!vma)
			break;
		*vma = (struct gs_vma){.start = q.vma_start, .end = q.vma_end, .file_offset = q.vma_offset, .inode = q.inode,
			.device = q.dev_major << 20 | q.dev_minor, .flags = q.vma_flags & VMA_WRITABLE ? GS_VMA_WRITABLE : 0};
	}
	find_vdso(fd, list);
	return 0;
}

static int keep_path(struct gs_vma_list *list, struct gs_vma *vma, const char *path, size_t length)
{
	if (list->paths_used + length > list->paths_room) {
		size_t room = (list->paths_used + length) * 2;
		char *grown = room < UINT32_MAX ? realloc(list->paths, room) : NULL;

		if (!grown)
			return ENOMEM;
		list->paths = grown;
		list->paths_room = room;
	}
	if (length)
		memcpy(list->paths + list->paths_used, path, length);
	vma->path = (uint32_t)list->paths_used;
	vma->path_length = (uint32_t)length;
	list->paths_used += length;
	return 0;
}

static int take_line(struct gs_vma_list *list, const char *line, size_t length)
{
	const char *path = NULL;
	size_t path_length = 0;
	struct gs_vma parsed, *vma;
	int kind = gs_parse_maps_line(line, length, &parsed, &path, &path_length);

	if (kind <= 0) {
		list->bad_lines += kind < 0;
		return 0;
	}
	if (list->count && parsed.start < list->vmas[list->count - 1].end) { /* binary search needs the kernel's order */
		list->bad_lines++;
		return 0;
	}
	vma = append(list);
	if (!vma)
		return list->count < GS_LISTING_MAX ? ENOMEM : ENOBUFS;
	*vma = parsed;
	return parsed.inode ? keep_path(list, vma, path, path_length) : 0;
}

/* Takes the whole lines of text; returns how many bytes they were. */
static size_t take_lines(struct gs_vma_list *list, const char *text, size_t length, int *error)
{
	const char *line = text, *end = text + length, *newline;

	while (!*error && line < end && (newline = memchr(line, '\n', end - line))) {
		*error = take_line(list, line, newline - line);
		line = newline + 1;
	}
	return line - text;
}

int gs_parse_maps(const char *text, size_t length, struct gs_vma_list *list)
{
	int error = 0;
	size_t used = take_lines(list, text, length, &error);

	if (!error && used < length)
		error = take_line(list, text + used, length - used);
	return error == ENOBUFS ? 0 : error;
}

static int list_by_text(int fd, struct gs_vma_list *list)
{
	static __thread char buffer[64 << 10]; /* the longest line is 4 x PATH_MAX, all newlines */
	size_t held = 0, used;
	int error = 0, skipping = 0;

	list->by_text = 1;
	for (;;) {
		ssize_t got = read(fd, buffer + held, sizeof(buffer) - held);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno;
		if (got == 0)
			break;
		held += got;
		used = skipping ? 0 : take_lines(list, buffer, held, &error);
		if (error)
			return error == ENOBUFS ? 0 : error;
		if (skipping) {
			char *newline = memchr(buffer, '\n', held);

			used = newline ? (size_t)(newline + 1 - buffer) : held;
			skipping = !newline;
		} else if (!used && held == sizeof(buffer)) { /* no kernel writes such a line */
			list->bad_lines++;
			skipping = 1;
			used = held;
		}
		held -= used;
		memmove(buffer, buffer + used, held);
	}
	if (held && !skipping)
		error = take_line(list, buffer, held);
	return error == ENOBUFS ? 0 : error;
}

int gs_list_mappings(int process, const char *name, int *no_query, struct gs_vma_list *list)
{
	int fd = openat(process, name, O_RDONLY | O_CLOEXEC);
	int error = ENOTTY;

	list->count = 0;
	list->paths_used = 0;
	list->bad_lines = 0;
	list->by_text = 0;
	list->maps_fd = -1;
	if (fd < 0)
		return errno;
	if (!*no_query) {
		error = list_by_query(fd, list);
		*no_query = error == ENOTTY;
	}
	if (error == ENOTTY)
		error = list_by_text(fd, list);
	if (error || list->by_text)
		close(fd);
	else
		list->maps_fd = fd;
	return error;
}

int gs_list_path(const struct gs_vma_list *list, const struct gs_vma *vma, char out[GS_FILE_PATH_MAX])
{
	const char *from = list->paths + vma->path;
	int length = 0;

	if (!list->by_text)
		return list->maps_fd < 0 ? -1 : query_name(list->maps_fd, vma, out);
	for (uint32_t i = 0; i < vma->path_length; i++) {
		if (length == GS_FILE_PATH_MAX - 1)
			return -1;
		if (vma->path_length - i >= 4 && !memcmp(from + i, "\\012", 4)) {
			out[length++] = '\n';
			i += 3;
		} else {
			out[length++] = from[i];
		}
	}
	out[length] = 0;
	return length;
}

struct gs_build_id gs_list_build_id(const struct gs_vma_list *list, const struct gs_vma *vma)
{
	struct gs_build_id id = {.reason = GS_BUILD_ID_not_opened};
	struct procmap_query q = {.query_addr = vma->start, .build_id_size = sizeof(id.bytes), .build_id_addr = (uintptr_t)id.bytes};

	if (list->maps_fd < 0 || query(list->maps_fd, &q) || q.inode != vma->inode || q.build_id_size > sizeof(id.bytes))
		return (struct gs_build_id){.reason = GS_BUILD_ID_not_opened};
	id.length = (uint8_t)q.build_id_size;
	if (id.length)
		id.reason = GS_BUILD_ID_found;
	return id;
}

void gs_list_done(struct gs_vma_list *list)
{
	if (list->maps_fd >= 0)
		close(list->maps_fd);
	list->maps_fd = -1;
}

void gs_list_free(struct gs_vma_list *list)
{
	gs_list_done(list);
	free(list->vmas);
	free(list->paths);
	memset(list, 0, sizeof(*list));
	list->maps_fd = -1;
}
