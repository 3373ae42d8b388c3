/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a file brings the JIT interface. libjax_common has the symbol in .symtab only, among 742,000 whose names take 90 MB:
 * so the string table is searched for the name, in pieces, and symbols are read only where it occurs. */
#include <stdlib.h>
#include <string.h>

#include "elf_file.h"
#include "jit_object.h"

#define PIECE (256u << 10)
#define MAX_STRINGS (512ULL << 20)
#define MAX_SYMBOLS (256ULL << 20)
#define MAX_PLACES 4 /* "x__jit_debug_descriptor" holds it too */

static const char wanted[] = "__jit_debug_descriptor";

struct places {
	uint64_t at[MAX_PLACES];
	int n;
};

static void search_piece(const char *piece, size_t size, uint64_t base, struct places *found)
{
	const char *at = piece, *hit;

	while (found->n < MAX_PLACES && (hit = memmem(at, size - (size_t)(at - piece), wanted, sizeof(wanted)))) {
		uint64_t place = base + (uint64_t)(hit - piece);
		if (!found->n || found->at[found->n - 1] < place) /* pieces overlap */
			found->at[found->n++] = place;
		at = hit + 1;
	}
}

static void search_strings(const struct gs_elf *elf, const Elf64_Shdr *strings, char *piece, struct places *found)
{
	uint64_t size = strings->sh_size < MAX_STRINGS ? strings->sh_size : MAX_STRINGS;

	for (uint64_t at = 0; at < size; at += PIECE - sizeof(wanted)) {
		uint64_t n = size - at < PIECE ? size - at : PIECE;
		if (!gs_elf_read(elf, piece, n, strings->sh_offset + at))
			return;
		search_piece(piece, n, at, found);
	}
}

static uint64_t search_symbols(const struct gs_elf *elf, const Elf64_Shdr *table, char *piece, const struct places *found)
{
	uint64_t size = table->sh_size < MAX_SYMBOLS ? table->sh_size : MAX_SYMBOLS;
	const uint64_t step = PIECE / sizeof(Elf64_Sym) * sizeof(Elf64_Sym);

	for (uint64_t at = 0; at < size; at += step) {
		uint64_t n = size - at < step ? size - at : step;
		if (!gs_elf_read(elf, piece, n, table->sh_offset + at))
			return 0;
		for (uint64_t i = 0; i + sizeof(Elf64_Sym) <= n; i += sizeof(Elf64_Sym)) {
			Elf64_Sym s;
			memcpy(&s, piece + i, sizeof(s));
			for (int k = 0; k < found->n; k++)
				if (s.st_name == found->at[k] && s.st_shndx != SHN_UNDEF && s.st_value)
					return s.st_value;
		}
	}
	return 0;
}

static uint64_t search_table(const struct gs_elf *elf, uint32_t type, char *piece)
{
	for (uint32_t i = 0; i < elf->n_sections; i++) {
		const Elf64_Shdr *table = &elf->sections[i];
		struct places found = { { 0 }, 0 };
		uint64_t value;

		if (table->sh_type != type || table->sh_link >= elf->n_sections)
			continue;
		search_strings(elf, &elf->sections[table->sh_link], piece, &found);
		value = found.n ? search_symbols(elf, table, piece, &found) : 0;
		if (value)
			return value;
	}
	return 0;
}

/* Segments are mapped from the start of the page they begin in. */
static uint64_t segment_delta(const struct gs_elf *elf, uint64_t file_offset)
{
	for (unsigned i = 0; i < elf->header.e_phnum; i++) {
		const Elf64_Phdr *s = &elf->segments[i];
		if (s->p_type == PT_LOAD && s->p_flags & PF_X && file_offset + 65536 > s->p_offset && file_offset < s->p_offset + s->p_filesz)
			return s->p_vaddr - s->p_offset;
	}
	return 0;
}

uint64_t gs_jit_find_descriptor(int fd, uint64_t file_offset)
{
	struct gs_elf elf;
	char *piece = malloc(PIECE);
	uint64_t value = 0;

	if (piece && !gs_elf_open(&elf, fd)) {
		value = search_table(&elf, SHT_DYNSYM, piece);
		if (!value)
			value = search_table(&elf, SHT_SYMTAB, piece);
		if (value)
			value -= segment_delta(&elf, file_offset);
		gs_elf_close(&elf);
	}
	free(piece);
	return value;
}
