/* SPDX-License-Identifier: Apache-2.0 */
#include "jit_object.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "elf_file.h"
#include "index.h"

#define MAX_FRAMES (8u << 20) /* bytes of .eh_frame */
#define MAX_NAMES (4u << 20)
#define MARK_BYTES 1024 /* LLVM puts the section headers, with all addresses, at the end of an image */

static int read_memory(int memory, void *to, size_t size, uint64_t from)
{
	return from <= INT64_MAX - size && pread(memory, to, size, (off_t)from) == (ssize_t)size;
}

int gs_jit_read_descriptor(int memory, uint64_t at, struct gs_jit_descriptor *out)
{
	return read_memory(memory, out, sizeof(*out), at) && out->version == 1;
}

/* A list that is read again and again must not cost its images each time: their ends tell whether one is new. */
static uint64_t mark_of(int memory, const struct gs_jit_entry *e)
{
	uint64_t bytes[2 * MARK_BYTES / 8] = { 0 }, mark = e->size;
	size_t n = e->size < MARK_BYTES ? e->size : MARK_BYTES;

	if (!read_memory(memory, bytes, n, e->image) || !read_memory(memory, bytes + MARK_BYTES / 8, n, e->image + e->size - n))
		return 0;
	for (size_t i = 0; i < sizeof(bytes) / 8; i++)
		mark = gs_mix(mark, bytes[i]);
	return mark | 1;
}

enum gs_jit_list_end gs_jit_read_list(int memory, uint64_t descriptor, struct gs_jit_object **objects, uint32_t *count)
{
	struct gs_jit_descriptor d;
	uint64_t at, previous = 0;
	uint32_t room = 0, seen = 0;

	*objects = NULL;
	*count = 0;
	if (!gs_jit_read_descriptor(memory, descriptor, &d))
		return GS_JIT_LIST_NONE;
	for (at = d.first; at; seen++) {
		struct gs_jit_entry e;

		if (seen == GS_JIT_MAX_OBJECTS)
			return GS_JIT_LIST_CUT;
		if (!read_memory(memory, &e, sizeof(e), at) || e.previous != previous)
			return GS_JIT_LIST_BROKEN;
		if (*count == room) {
			struct gs_jit_object *larger = realloc(*objects, (room ? room * 2 : 64) * sizeof(**objects));
			if (!larger)
				return GS_JIT_LIST_CUT;
			*objects = larger;
			room = room ? room * 2 : 64;
		}
		(*objects)[(*count)++] = (struct gs_jit_object){ .entry = at, .image = e.image, .size = e.size,
			.mark = e.size && e.size <= GS_JIT_MAX_IMAGE ? mark_of(memory, &e) : 0 };
		previous = at;
		at = e.next;
	}
	return GS_JIT_LIST_WHOLE;
}

/* The image as a file, so that the reader of ELF files reads it with all its checks. */
static int image_file(int memory, const struct gs_jit_object *o)
{
	uint8_t *bytes = malloc(o->size);
	int fd = bytes && read_memory(memory, bytes, o->size, o->image) ? memfd_create("jit", MFD_CLOEXEC) : -1;

	if (fd >= 0 && pwrite(fd, bytes, o->size, 0) != (ssize_t)o->size) {
		close(fd);
		fd = -1;
	}
	free(bytes);
	return fd;
}

static int is_code(const Elf64_Shdr *s)
{
	return s->sh_flags & SHF_EXECINSTR && s->sh_addr && s->sh_size && s->sh_size <= GS_JIT_MAX_IMAGE && s->sh_addr <= INT64_MAX;
}

static void find_extent(const struct gs_elf *elf, struct gs_jit_object *o)
{
	o->low = UINT64_MAX;
	for (uint32_t i = 0; i < elf->n_sections; i++) {
		const Elf64_Shdr *s = &elf->sections[i];
		if (!is_code(s))
			continue;
		o->low = s->sh_addr < o->low ? s->sh_addr : o->low;
		o->high = s->sh_addr + s->sh_size > o->high ? s->sh_addr + s->sh_size : o->high;
	}
}

/* .eh_frame. Of a relocatable image the bytes are as the compiler wrote them; what the linker made of them lies at the section's
 * address, where the program's own unwinder reads it. */
static void read_frames(int memory, const struct gs_elf *elf, struct gs_jit_object *o)
{
	const Elf64_Shdr *s = gs_elf_section(elf, ".eh_frame");
	const char *reason;

	if (!s || !s->sh_size || s->sh_size > MAX_FRAMES)
		return;
	o->frames = gs_elf_load(elf, s, MAX_FRAMES, &o->frames_size, &reason);
	o->frames_vaddr = s->sh_addr;
	if (!o->frames || elf->header.e_type != ET_REL)
		return;
	if (!s->sh_addr || o->frames_size != s->sh_size || !read_memory(memory, o->frames, o->frames_size, s->sh_addr)) {
		free(o->frames);
		o->frames = NULL;
	}
}

/* Where a function symbol lies, or 0. Symbols of relocatable images are offsets into their section. */
static uint64_t symbol_start(const struct gs_elf *elf, const Elf64_Sym *symbol, uint64_t *end)
{
	const Elf64_Shdr *s = symbol->st_shndx < elf->n_sections ? &elf->sections[symbol->st_shndx] : NULL;
	uint64_t offset;

	if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !symbol->st_shndx || !s || !is_code(s))
		return 0;
	offset = elf->header.e_type == ET_REL ? symbol->st_value : symbol->st_value - s->sh_addr;
	if (offset >= s->sh_size)
		return 0;
	*end = s->sh_addr + (symbol->st_size && symbol->st_size <= s->sh_size - offset ? offset + symbol->st_size : s->sh_size);
	return s->sh_addr + offset;
}

static int add_symbol(struct gs_jit_object *o, uint64_t start, uint64_t end, const char *name, size_t length)
{
	if (length > GS_JIT_NAME_MAX)
		length = GS_JIT_NAME_MAX;
	o->symbols[o->n_symbols++] = (struct gs_jit_symbol){ start, end, o->names_size };
	memcpy(o->names + o->names_size, name, length);
	o->names[o->names_size + length] = 0;
	o->names_size += (uint32_t)length + 1;
	return 1;
}

static void read_symbols(const struct gs_elf *elf, struct gs_jit_object *o)
{
	const Elf64_Shdr *table = gs_elf_section(elf, ".symtab");
	const Elf64_Shdr *strings = table && table->sh_link < elf->n_sections ? &elf->sections[table->sh_link] : NULL;
	size_t size = 0, text_size = 0;
	const char *reason;
	uint8_t *entries = strings ? gs_elf_load(elf, table, GS_JIT_MAX_IMAGE, &size, &reason) : NULL;
	uint8_t *text = entries ? gs_elf_load(elf, strings, MAX_NAMES, &text_size, &reason) : NULL;
	size_t n = size / sizeof(Elf64_Sym);

	n = n < GS_JIT_MAX_SYMBOLS ? n : GS_JIT_MAX_SYMBOLS;
	o->symbols = text ? malloc((n + 1) * sizeof(*o->symbols)) : NULL;
	o->names = o->symbols ? malloc(text_size + n * 1 + 1) : NULL;
	for (size_t i = 0; o->names && i < n; i++) {
		Elf64_Sym symbol;
		uint64_t start, end = 0;
		const uint8_t *stop;
		memcpy(&symbol, entries + i * sizeof(symbol), sizeof(symbol));
		start = symbol_start(elf, &symbol, &end);
		stop = start && symbol.st_name < text_size ? memchr(text + symbol.st_name, 0, text_size - symbol.st_name) : NULL;
		/* Names may share their tails, so together they may be longer than the table: what does not fit has no name. */
		if (stop && (size_t)(stop - text) - symbol.st_name + 1 <= text_size + n - o->names_size)
			add_symbol(o, start, end, (const char *)text + symbol.st_name, (size_t)(stop - text) - symbol.st_name);
	}
	free(entries);
	free(text);
}

const char *gs_jit_read_object(int memory, struct gs_jit_object *o)
{
	struct gs_elf elf;
	const char *reason;
	int fd;

	if (!o->mark)
		return "no image of a size that can be";
	fd = image_file(memory, o);
	if (fd < 0)
		return "image not readable";
	reason = gs_elf_open(&elf, fd);
	if (!reason) {
		find_extent(&elf, o);
		if (o->low < o->high) {
			read_frames(memory, &elf, o);
			read_symbols(&elf, o);
		} else {
			reason = "no code";
		}
		gs_elf_close(&elf);
	}
	close(fd);
	return reason;
}

void gs_jit_free_object(struct gs_jit_object *o)
{
	free(o->symbols);
	free(o->names);
	free(o->frames);
	o->symbols = NULL;
	o->names = NULL;
	o->frames = NULL;
}
