/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "elf_file.h"
#include "elf_names.h"

static void take_build_id(struct gs_elf_facts *facts, const uint8_t *notes, size_t size)
{
	size_t at = 0;

	while (size - at >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr note;
		uint64_t name, content, end;
		memcpy(&note, notes + at, sizeof note);
		name = at + sizeof note;
		content = name + ((note.n_namesz + 3ull) & ~3ull);
		end = content + ((note.n_descsz + 3ull) & ~3ull);
		if (content + note.n_descsz > size)
			return;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !memcmp(notes + name, "GNU", 4) &&
		    note.n_descsz && note.n_descsz <= sizeof facts->build_id) {
			facts->build_id_length = note.n_descsz;
			memcpy(facts->build_id, notes + content, note.n_descsz);
			return;
		}
		if (end > size)
			return;
		at = end;
	}
}

static void read_notes(const struct gs_elf *elf, struct gs_elf_facts *facts, uint64_t offset, uint64_t size)
{
	uint8_t notes[4096];

	if (facts->build_id_length)
		return;
	if (size > sizeof notes)
		size = sizeof notes;
	if (gs_elf_read(elf, notes, size, offset))
		take_build_id(facts, notes, size);
}

static void take_segments(const struct gs_elf *elf, struct gs_elf_facts *facts)
{
	for (unsigned i = 0; i < elf->header.e_phnum; i++) {
		const Elf64_Phdr *raw = &elf->segments[i];
		if (raw->p_type == PT_NOTE)
			read_notes(elf, facts, raw->p_offset, raw->p_filesz);
		if (raw->p_type != PT_LOAD)
			continue;
		if (facts->n_segments == GS_ELF_SEGMENTS) {
			facts->lost_segments++;
			continue;
		}
		facts->segments[facts->n_segments++] = (struct gs_elf_segment){
			raw->p_offset, raw->p_filesz, raw->p_vaddr, raw->p_memsz, raw->p_flags, 0};
	}
}

static void take_debug_link(const struct gs_elf *elf, struct gs_elf_facts *facts, const Elf64_Shdr *section)
{
	char link[sizeof facts->debug_link + 8] = {0};
	size_t size = section->sh_size < sizeof link ? section->sh_size : sizeof link;
	size_t length, crc;

	if (!gs_elf_read(elf, link, size, section->sh_offset))
		return;
	length = strnlen(link, size);
	crc = (length + 4) & ~(size_t)3;
	if (!length || length >= sizeof facts->debug_link || crc + 4 > size)
		return;
	memcpy(facts->debug_link, link, length + 1);
	memcpy(&facts->debug_link_crc, link + crc, 4);
}

static void take_sections(const struct gs_elf *elf, struct gs_elf_facts *facts)
{
	const Elf64_Shdr *section = gs_elf_section(elf, ".gnu_debugdata");
	int has_info = gs_elf_section(elf, ".debug_info") || gs_elf_section(elf, ".zdebug_info");

	if (section) {
		facts->minidebug_offset = section->sh_offset;
		facts->minidebug_size = section->sh_size;
	}
	section = gs_elf_section(elf, ".gnu_debuglink");
	if (section)
		take_debug_link(elf, facts, section);
	for (uint32_t i = 0; i < elf->n_sections; i++) {
		section = &elf->sections[i];
		if (section->sh_type == SHT_SYMTAB)
			facts->symbols = section->sh_size / sizeof(Elf64_Sym);
		else if (section->sh_type == SHT_DYNSYM)
			facts->dynamic_symbols = section->sh_size / sizeof(Elf64_Sym);
		else if (section->sh_type == SHT_NOTE) /* of a debug file, whose program headers describe the other file */
			read_notes(elf, facts, section->sh_offset, section->sh_size);
		else if (has_info && section->sh_type == SHT_PROGBITS && section->sh_name < elf->names_size &&
			 (!strncmp(elf->names + section->sh_name, ".debug_", 7) || !strncmp(elf->names + section->sh_name, ".zdebug_", 8)))
			facts->debug_bytes += section->sh_size < elf->size ? section->sh_size : 0;
	}
}

const char *gs_elf_inspect(int fd, struct gs_elf_facts *facts)
{
	struct gs_elf elf;
	const char *reason = gs_elf_open(&elf, fd);

	memset(facts, 0, sizeof *facts);
	if (reason)
		return reason;
	facts->machine = elf.header.e_machine;
	take_sections(&elf, facts);
	take_segments(&elf, facts);
	gs_elf_close(&elf);
	return NULL;
}
