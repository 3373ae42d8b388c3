/* SPDX-License-Identifier: Apache-2.0 */
#include "elf_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define MAX_SECTIONS (1u << 18)
#define MAX_NAMES (16u << 20)

int gs_elf_read(const struct gs_elf *elf, void *to, size_t size, uint64_t offset)
{
	size_t done = 0;

	if (size > elf->size || offset > elf->size - size)
		return 0;
	while (done < size) {
		ssize_t n = pread(elf->fd, (char *)to + done, size - done, (off_t)(offset + done));
		if (n <= 0)
			return 0;
		done += (size_t)n;
	}
	return 1;
}

static void *read_table(const struct gs_elf *elf, uint64_t offset, size_t count, size_t each)
{
	void *table = malloc(count * each + 1);

	if (table && !gs_elf_read(elf, table, count * each, offset)) {
		free(table);
		return NULL;
	}
	return table;
}

/* Sections are optional: what the kernel maps needs segments only, and stripped files may lack the rest. */
static void read_sections(struct gs_elf *elf)
{
	Elf64_Shdr first;
	uint32_t names_index = elf->header.e_shstrndx;

	if (!elf->header.e_shoff || elf->header.e_shentsize != sizeof first ||
	    !gs_elf_read(elf, &first, sizeof first, elf->header.e_shoff))
		return;
	elf->n_sections = elf->header.e_shnum ? elf->header.e_shnum : (uint32_t)first.sh_size;
	if (names_index == SHN_XINDEX)
		names_index = first.sh_link;
	if (elf->n_sections <= MAX_SECTIONS && names_index < elf->n_sections)
		elf->sections = read_table(elf, elf->header.e_shoff, elf->n_sections, sizeof first);
	if (elf->sections) {
		const Elf64_Shdr *names = &elf->sections[names_index];
		if (names->sh_type == SHT_STRTAB && names->sh_size <= MAX_NAMES)
			elf->names = read_table(elf, names->sh_offset, names->sh_size, 1);
		if (elf->names) {
			elf->names_size = names->sh_size;
			elf->names[elf->names_size] = 0;
		}
	}
	if (!elf->names) {
		free(elf->sections);
		elf->sections = NULL;
		elf->n_sections = 0;
	}
}

const char *gs_elf_open(struct gs_elf *elf, int fd)
{
	struct stat status;

	memset(elf, 0, sizeof *elf);
	elf->fd = fd;
	if (fstat(fd, &status))
		return "file gone";
	elf->size = (uint64_t)status.st_size;
	if (!gs_elf_read(elf, &elf->header, sizeof elf->header, 0) || memcmp(elf->header.e_ident, ELFMAG, SELFMAG))
		return "not an ELF file";
	if (elf->header.e_ident[EI_CLASS] != ELFCLASS64 || elf->header.e_ident[EI_DATA] != ELFDATA2LSB)
		return "not a 64-bit little-endian ELF file";
	if (elf->header.e_phnum && elf->header.e_phentsize != sizeof(Elf64_Phdr))
		return "corrupt program headers";
	elf->segments = read_table(elf, elf->header.e_phoff, elf->header.e_phnum, sizeof(Elf64_Phdr));
	if (!elf->segments)
		return "truncated program headers";
	read_sections(elf);
	return NULL;
}

void gs_elf_close(struct gs_elf *elf)
{
	free(elf->segments);
	free(elf->sections);
	free(elf->names);
	memset(elf, 0, sizeof *elf);
}

const Elf64_Shdr *gs_elf_section(const struct gs_elf *elf, const char *name)
{
	for (uint32_t i = 0; i < elf->n_sections; i++) {
		const Elf64_Shdr *section = &elf->sections[i];
		if (section->sh_type != SHT_NOBITS && section->sh_name < elf->names_size &&
		    !strcmp(elf->names + section->sh_name, name))
			return section;
	}
	return NULL;
}

static uint8_t *inflate_section(const uint8_t *raw, size_t raw_size, size_t limit, size_t *size, const char **reason)
{
	Elf64_Chdr chdr;
	uLongf done;
	uint8_t *data;

	*reason = "corrupt compressed section";
	if (raw_size < sizeof chdr)
		return NULL;
	memcpy(&chdr, raw, sizeof chdr);
	if (chdr.ch_type != ELFCOMPRESS_ZLIB) {
		*reason = "section compressed by a method other than zlib";
		return NULL;
	}
	if (chdr.ch_size > limit) {
		*reason = "section too large";
		return NULL;
	}
	done = chdr.ch_size;
	data = malloc(chdr.ch_size + 1);
	if (data && (uncompress(data, &done, raw + sizeof chdr, raw_size - sizeof chdr) != Z_OK || done != chdr.ch_size)) {
		free(data);
		return NULL;
	}
	*size = chdr.ch_size;
	return data;
}

uint8_t *gs_elf_load(const struct gs_elf *elf, const Elf64_Shdr *section, size_t limit, size_t *size, const char **reason)
{
	uint8_t *raw, *data;

	if (section->sh_size > limit) {
		*reason = "section too large";
		return NULL;
	}
	raw = read_table(elf, section->sh_offset, section->sh_size, 1);
	if (!raw) {
		*reason = "truncated section";
		return NULL;
	}
	*size = section->sh_size;
	if (!(section->sh_flags & SHF_COMPRESSED))
		return raw;
	data = inflate_section(raw, section->sh_size, limit, size, reason);
	free(raw);
	return data;
}

uint64_t gs_elf_file_offset(const struct gs_elf *elf, uint64_t vaddr)
{
	for (unsigned i = 0; i < elf->header.e_phnum; i++) {
		const Elf64_Phdr *segment = &elf->segments[i];
		if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) && vaddr >= segment->p_vaddr &&
		    vaddr - segment->p_vaddr < segment->p_filesz)
			return vaddr - segment->p_vaddr + segment->p_offset;
	}
	return UINT64_MAX;
}
