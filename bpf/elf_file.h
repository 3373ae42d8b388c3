/* SPDX-License-Identifier: Apache-2.0 */
/* An ELF file of somebody else: every offset and length is checked against the file's size before it is used, and the
 * file is read with pread, never mapped, so that one that shrinks meanwhile is a short read and not a SIGBUS. */
#ifndef GPUSTROBE_ELF_FILE_H
#define GPUSTROBE_ELF_FILE_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

struct gs_elf {
	int fd; /* borrowed */
	uint64_t size;
	Elf64_Ehdr header;
	Elf64_Phdr *segments; /* header.e_phnum */
	Elf64_Shdr *sections; /* n_sections; NULL where the file has none */
	uint32_t n_sections;
	char *names; /* section names, NUL terminated */
	size_t names_size;
};

/* NULL, or why this is no ELF file we can read; then nothing needs closing. */
const char *gs_elf_open(struct gs_elf *elf, int fd);
void gs_elf_close(struct gs_elf *elf);

/* The first section of that name and with contents, or NULL. */
const Elf64_Shdr *gs_elf_section(const struct gs_elf *elf, const char *name);

/* A section's bytes, decompressed, in memory the caller frees; NULL and *reason if not to be had within `limit` bytes. */
uint8_t *gs_elf_load(const struct gs_elf *elf, const Elf64_Shdr *section, size_t limit, size_t *size, const char **reason);

/* `size` bytes at `offset`, all or nothing. */
int gs_elf_read(const struct gs_elf *elf, void *to, size_t size, uint64_t offset);

/* File offset of a virtual address that lies in an executable segment; UINT64_MAX if it does not. */
uint64_t gs_elf_file_offset(const struct gs_elf *elf, uint64_t vaddr);

#endif
