// SPDX-License-Identifier: Apache-2.0
/* One line of /proc/PID/maps (fs/proc/task_mmu.c show_map_vma):
 *   55d0c2a00000-55d0c2a21000 r-xp 00002000 fe:01 131090    /usr/bin/cat
 * The path is what is left: it may hold spaces, end in " (deleted)", and has newlines as \012. A path that really contains
 * the four characters \012 looks the same: the kernel does not escape the backslash. */
#include <string.h>

#include "listing.h"

struct cursor {
	const char *at;
	const char *end;
};

static int digit(char c, unsigned base)
{
	int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;

	return value < (int)base ? value : -1;
}

static int number(struct cursor *c, unsigned base, char after, uint64_t *out)
{
	uint64_t value = 0;
	int digits = 0, next;

	for (; c->at < c->end && (next = digit(*c->at, base)) >= 0; c->at++, digits++) {
		if (value > (UINT64_MAX - next) / base)
			return -1;
		value = value * base + next;
	}
	if (!digits || c->at == c->end || *c->at != after)
		return -1;
	c->at++;
	*out = value;
	return 0;
}

static int inode_and_path(struct cursor *c, uint64_t *inode)
{
	const char *space = memchr(c->at, ' ', c->end - c->at);
	struct cursor field = {c->at, c->end};
	char text[24] = "";

	if (space) {
		if (number(&field, 10, ' ', inode))
			return -1;
		c->at = field.at;
	} else { /* no path and, on old kernels, no padding: the line ends here */
		size_t length = c->end - c->at;

		if (length >= sizeof(text) - 1)
			return -1;
		memcpy(text, c->at, length);
		text[length] = ' ';
		field = (struct cursor){text, text + length + 1};
		if (number(&field, 10, ' ', inode) || field.at != field.end)
			return -1;
		c->at = c->end;
	}
	while (c->at < c->end && *c->at == ' ')
		c->at++;
	return 0;
}

static int permissions(struct cursor *c, char out[4])
{
	static const char allowed[4][3] = {"r-", "w-", "x-", "ps"};

	if (c->end - c->at < 5 || c->at[4] != ' ')
		return -1;
	for (int i = 0; i < 4; i++) {
		if (c->at[i] != allowed[i][0] && c->at[i] != allowed[i][1])
			return -1;
		out[i] = c->at[i];
	}
	c->at += 5;
	return 0;
}

int gs_parse_maps_line(const char *line, size_t length, struct gs_vma *vma, const char **path, size_t *path_length)
{
	struct cursor c = {line, line + length};
	uint64_t major, minor;
	char mode[4];

	memset(vma, 0, sizeof(*vma));
	if (number(&c, 16, '-', &vma->start) || number(&c, 16, ' ', &vma->end) || permissions(&c, mode) || number(&c, 16, ' ', &vma->file_offset) ||
	    number(&c, 16, ':', &major) || number(&c, 16, ' ', &minor) || inode_and_path(&c, &vma->inode))
		return -1;
	if (vma->start >= vma->end || major >= 1 << 12 || minor >= 1 << 20)
		return -1;
	if (mode[2] != 'x' || vma->start >> 63) /* [vsyscall] lies in the kernel's half and is no mapping of the process */
		return 0;
	*path = c.at;
	*path_length = c.end - c.at;
	vma->device = (uint32_t)(major << 20 | minor);
	vma->flags = mode[1] == 'w' ? GS_VMA_WRITABLE : 0;
	if (!vma->inode && *path_length == 6 && !memcmp(*path, "[vdso]", 6))
		vma->flags |= GS_VMA_VDSO;
	return 1;
}
