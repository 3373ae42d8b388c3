/* SPDX-License-Identifier: Apache-2.0 */
/* The functions in an ELF file's symbol tables, one by one; what elf_names.c and elf_index.c share. */
#ifndef GPUSTROBE_ELF_SYMBOLS_H
#define GPUSTROBE_ELF_SYMBOLS_H

#include <sys/stat.h>

#include "elf_file.h"

#define GS_NO_END UINT64_MAX

struct gs_symbol {
	uint64_t start, size;
	uint64_t name; /* file offset of the name, 0 = none */
	uint64_t name_end; /* of its string table */
	uint32_t section;
	uint32_t rank; /* lower is better */
};

/* SHT_SYMTAB, SHT_DYNSYM: in this order they are read. */
extern const uint32_t gs_symbol_tables[2];

/* The first section of that type, or NULL. */
const Elf64_Shdr *gs_symbol_table(const struct gs_elf *elf, uint32_t type);

/* NULL, or what is wrong with the table or its strings. */
const char *gs_symbol_table_check(const struct gs_elf *elf, const Elf64_Shdr *table);

/* 0 if the entry names no function. `strings` was checked. */
int gs_symbol_take(const struct gs_elf *elf, const Elf64_Shdr *strings, const Elf64_Sym *raw, struct gs_symbol *symbol);

/* Gets each function with its number in its table; a reason stops the table. */
typedef const char *(*take_function)(void *context, const struct gs_symbol *symbol, uint64_t number);

/* Both tables; `second` is 1 while .dynsym is read. One that is broken is no reason to give up what the other one names. */
const char *gs_symbols_each(const struct gs_elf *elf, take_function take, void *context, int *second);

static inline uint64_t gs_symbol_end(const struct gs_symbol *symbol)
{
	return symbol->size > GS_NO_END - symbol->start ? GS_NO_END : symbol->start + symbol->size;
}

/* Whether the file is no longer what fstat said. */
int gs_file_changed(int fd, const struct stat *first);

#endif
