/* SPDX-License-Identifier: Apache-2.0 */
#include "elf_symbols.h"

#include <stdlib.h>

#define PIECE 4096 /* symbols read at a time */

static int names_code(const struct gs_elf *elf, const Elf64_Sym *raw)
{
	unsigned type = ELF64_ST_TYPE(raw->st_info);
	unsigned section = raw->st_shndx;

	if (section == SHN_UNDEF || !raw->st_name)
		return 0;
	if (type == STT_FUNC || type == STT_GNU_IFUNC)
		return 1;
	/* hand-written assembly often states no type */
	return type == STT_NOTYPE && section < elf->n_sections && (elf->sections[section].sh_flags & SHF_EXECINSTR);
}

/* $x, $d: what kind of bytes follow on arm64, no names */
static int is_mapping_symbol(const struct gs_elf *elf, const struct gs_symbol *symbol)
{
	char first = 0;

	return elf->header.e_machine == EM_AARCH64 && symbol->name && gs_elf_read(elf, &first, 1, symbol->name) && first == '$';
}

int gs_symbol_take(const struct gs_elf *elf, const Elf64_Shdr *strings, const Elf64_Sym *raw, struct gs_symbol *symbol)
{
	unsigned bind = ELF64_ST_BIND(raw->st_info);

	if (!names_code(elf, raw) || raw->st_name >= strings->sh_size)
		return 0;
	*symbol = (struct gs_symbol){
		.start = raw->st_value, .size = raw->st_size,
		.name = strings->sh_offset + raw->st_name, .name_end = strings->sh_offset + strings->sh_size,
		.section = raw->st_shndx, .rank = bind == STB_LOCAL ? 4 : bind == STB_WEAK ? 1 : 0,
	};
	return !is_mapping_symbol(elf, symbol);
}

const Elf64_Shdr *gs_symbol_table(const struct gs_elf *elf, uint32_t type)
{
	for (uint32_t i = 0; i < elf->n_sections; i++)
		if (elf->sections[i].sh_type == type)
			return &elf->sections[i];
	return NULL;
}

const char *gs_symbol_table_check(const struct gs_elf *elf, const Elf64_Shdr *table)
{
	const Elf64_Shdr *strings;

	if (table->sh_entsize != sizeof(Elf64_Sym) || table->sh_link >= elf->n_sections)
		return "corrupt symbol table";
	strings = &elf->sections[table->sh_link];
	if ((table->sh_flags | strings->sh_flags) & SHF_COMPRESSED)
		return "compressed symbol table";
	if (strings->sh_type != SHT_STRTAB || strings->sh_offset > elf->size || strings->sh_size > elf->size - strings->sh_offset)
		return "truncated string table";
	return NULL;
}

static const char *read_symbols(const struct gs_elf *elf, const Elf64_Shdr *table, Elf64_Sym *piece, take_function take, void *context)
{
	uint64_t count = table->sh_size / sizeof *piece;
	const char *reason = gs_symbol_table_check(elf, table);
	struct gs_symbol symbol;

	for (uint64_t done = 0; !reason && done < count;) {
		size_t some = count - done < PIECE ? (size_t)(count - done) : PIECE;
		if (!gs_elf_read(elf, piece, some * sizeof *piece, table->sh_offset + done * sizeof *piece))
			return "truncated symbol table";
		for (size_t i = 0; !reason && i < some; i++)
			if (gs_symbol_take(elf, &elf->sections[table->sh_link], &piece[i], &symbol))
				reason = take(context, &symbol, done + i);
		done += some;
	}
	return reason;
}

const uint32_t gs_symbol_tables[2] = {SHT_SYMTAB, SHT_DYNSYM};

const char *gs_symbols_each(const struct gs_elf *elf, take_function take, void *context, int *second)
{
	Elf64_Sym *piece = malloc(PIECE * sizeof *piece);
	const char *reason = "no symbols";
	int any = 0;

	if (!piece)
		return "out of memory";
	for (*second = 0; *second < 2; ++*second) {
		const Elf64_Shdr *table = gs_symbol_table(elf, gs_symbol_tables[*second]);
		const char *why = table ? read_symbols(elf, table, piece, take, context) : reason;
		if (why)
			reason = why;
		else
			any = 1;
	}
	free(piece);
	return any ? NULL : reason;
}

int gs_file_changed(int fd, const struct stat *first)
{
	struct stat now;

	return fstat(fd, &now) || now.st_size != first->st_size || now.st_mtim.tv_sec != first->st_mtim.tv_sec ||
	       now.st_mtim.tv_nsec != first->st_mtim.tv_nsec;
}
