// SPDX-License-Identifier: Apache-2.0
/* The GNU build id by pread: the file may shrink, change or be hostile while we look, so nothing is mapped (SIGBUS) and every
 * number is compared with the file's size before it is used. Layouts: elf(5). */
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

/* libxul, libjax and chromium have 9 to 14 program headers; Go and kernels fewer. */
#define MAX_HEADERS 256
#define MAX_NOTES 256

struct file {
	int fd;
	uint64_t size;
	uint32_t notes; /* read so far */
};

/* 0, or the reason why not. */
static int read_at(const struct file *f, uint64_t offset, void *out, uint64_t length)
{
	uint64_t done = 0;

	if (offset > f->size || length > f->size - offset)
		return GS_BUILD_ID_truncated;
	while (done < length) {
		ssize_t got = pread(f->fd, (char *)out + done, length - done, (off_t)(offset + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? GS_BUILD_ID_unreadable : GS_BUILD_ID_truncated;
		done += got;
	}
	return 0;
}

static uint64_t align_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) & ~(to - 1);
}

/* One note at `offset` with `left` bytes of segment: the bytes it takes, or 0 when it does not fit. */
static uint64_t take_note(struct file *f, uint64_t offset, uint64_t left, uint64_t alignment, struct gs_build_id *id)
{
	struct {
		Elf64_Nhdr header;
		char name[4];
	} note;
	uint64_t description, end;

	if (left < sizeof(note.header) || read_at(f, offset, &note.header, sizeof(note.header)))
		return 0;
	description = align_up(sizeof(note.header) + (uint64_t)note.header.n_namesz, alignment);
	end = description + note.header.n_descsz; /* the last note's padding may be cut off */
	if (end > left)
		return 0;
	if (note.header.n_type == NT_GNU_BUILD_ID && note.header.n_namesz == 4 && !read_at(f, offset + sizeof(note.header), note.name, 4) &&
	    !memcmp(note.name, "GNU", 4) && note.header.n_descsz && note.header.n_descsz <= sizeof(id->bytes) &&
	    !read_at(f, offset + description, id->bytes, note.header.n_descsz)) {
		id->length = (uint8_t)note.header.n_descsz;
		id->reason = GS_BUILD_ID_found;
	}
	return align_up(end, alignment);
}

static void take_segment(struct file *f, const Elf64_Phdr *segment, struct gs_build_id *id)
{
	uint64_t alignment = segment->p_align == 8 ? 8 : 4, at = 0, used;

	if (segment->p_offset > f->size || segment->p_filesz > f->size - segment->p_offset) {
		id->reason = GS_BUILD_ID_truncated;
		return;
	}
	while (!id->length && at < segment->p_filesz && f->notes++ < MAX_NOTES) {
		used = take_note(f, segment->p_offset + at, segment->p_filesz - at, alignment, id);
		if (!used) {
			id->reason = GS_BUILD_ID_corrupt;
			return;
		}
		at += used;
	}
}

struct gs_build_id gs_read_build_id(int fd)
{
	struct gs_build_id id = {.reason = GS_BUILD_ID_no_note};
	struct file f = {.fd = fd};
	Elf64_Ehdr header;
	Elf64_Phdr segment;
	struct stat st;
	int problem;

	if (fd < 0 || fstat(fd, &st))
		return (struct gs_build_id){.reason = GS_BUILD_ID_not_opened};
	f.size = st.st_size > 0 ? (uint64_t)st.st_size : 0;
	if (read_at(&f, 0, header.e_ident, EI_NIDENT) || memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
	    header.e_ident[EI_DATA] != ELFDATA2LSB)
		return (struct gs_build_id){.reason = GS_BUILD_ID_not_elf};
	problem = read_at(&f, 0, &header, sizeof(header));
	if (problem || header.e_phentsize != sizeof(segment) || header.e_phoff > f.size)
		return (struct gs_build_id){.reason = problem ? problem : header.e_phnum ? GS_BUILD_ID_corrupt : GS_BUILD_ID_no_note};
	for (unsigned i = 0; i < header.e_phnum && i < MAX_HEADERS && !id.length; i++) {
		problem = read_at(&f, header.e_phoff + i * sizeof(segment), &segment, sizeof(segment));
		if (problem)
			return (struct gs_build_id){.reason = problem};
		if (segment.p_type == PT_NOTE)
			take_segment(&f, &segment, &id);
	}
	return id;
}
