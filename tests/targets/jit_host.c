/* SPDX-License-Identifier: Apache-2.0 */
/* A small run-time linker with GDB's JIT interface: loads .text and .eh_frame of a relocatable object (jit_code.o) into anonymous
 * memory, notes their addresses in the object's section headers, registers it, and runs its jit_entry for ever.
 *
 * jit_host OBJECT MODE: registered, nameless (not registered), rowless (registered without .eh_frame), late (registered after a
 * second, so that it is sampled before). */
#define _GNU_SOURCE
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct jit_code_entry {
	struct jit_code_entry *next, *previous;
	const char *image;
	uint64_t size;
};

struct jit_descriptor {
	uint32_t version, action;
	struct jit_code_entry *relevant, *first;
};

__attribute__((noinline)) void __jit_debug_register_code(void)
{
	__asm__ volatile("" ::: "memory");
}

struct jit_descriptor __jit_debug_descriptor = { 1, 0, NULL, NULL };

static char *read_whole(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	char *bytes = malloc(1 << 20);

	*size = file ? fread(bytes, 1, 1 << 20, file) : 0;
	return bytes;
}

static Elf64_Shdr *find(char *image, const char *name)
{
	Elf64_Ehdr *head = (Elf64_Ehdr *)image;
	Elf64_Shdr *sections = (Elf64_Shdr *)(image + head->e_shoff);

	for (int i = 0; i < head->e_shnum; i++)
		if (!strcmp(image + sections[head->e_shstrndx].sh_offset + sections[i].sh_name, name))
			return &sections[i];
	return NULL;
}

/* R_X86_64_PC32 against sections whose addresses are known. */
static void relocate(char *image, const char *name, Elf64_Shdr *target, char *memory)
{
	Elf64_Ehdr *head = (Elf64_Ehdr *)image;
	Elf64_Shdr *sections = (Elf64_Shdr *)(image + head->e_shoff), *relocations = find(image, name);
	Elf64_Sym *symbols = (Elf64_Sym *)(image + sections[relocations->sh_link].sh_offset);

	for (uint64_t i = 0; i < relocations->sh_size / sizeof(Elf64_Rela); i++) {
		Elf64_Rela *r = (Elf64_Rela *)(image + relocations->sh_offset) + i;
		Elf64_Sym *symbol = &symbols[ELF64_R_SYM(r->r_info)];
		uint64_t value = sections[symbol->st_shndx].sh_addr + symbol->st_value + r->r_addend;

		*(int32_t *)(memory + r->r_offset) = (int32_t)(value - (target->sh_addr + r->r_offset));
	}
}

static unsigned long (*load(char *image))(unsigned long)
{
	Elf64_Shdr *text = find(image, ".text"), *frames = find(image, ".eh_frame"), *table = find(image, ".symtab");
	Elf64_Shdr *strings = find(image, ".strtab");
	char *memory = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	Elf64_Sym *symbols = (Elf64_Sym *)(image + table->sh_offset);
	uint64_t entry = 0;

	text->sh_addr = (uint64_t)memory;
	memcpy(memory, image + text->sh_offset, text->sh_size);
	frames->sh_addr = (uint64_t)memory + 2 * 4096;
	memcpy(memory + 2 * 4096, image + frames->sh_offset, frames->sh_size);
	relocate(image, ".rela.eh_frame", frames, memory + 2 * 4096);
	mprotect(memory, 4096, PROT_READ | PROT_EXEC);
	mprotect(memory + 2 * 4096, 4096, PROT_READ);
	for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++)
		if (!strcmp(image + strings->sh_offset + symbols[i].st_name, "jit_entry"))
			entry = (uint64_t)memory + symbols[i].st_value;
	return (unsigned long (*)(unsigned long))entry;
}

static void enlist(struct jit_code_entry *entry, const char *image, size_t size)
{
	*entry = (struct jit_code_entry){ __jit_debug_descriptor.first, NULL, image, size };
	if (entry->next)
		entry->next->previous = entry;
	__jit_debug_descriptor.first = __jit_debug_descriptor.relevant = entry;
	__jit_debug_descriptor.action = 1;
	__jit_debug_register_code();
}

static struct jit_code_entry entry;

int main(int count, char **arguments)
{
	size_t size;
	char *image = read_whole(arguments[1], &size);
	unsigned long (*run)(unsigned long) = load(image), sum = 0;

	if (!strcmp(arguments[2], "rowless"))
		find(image, ".eh_frame")->sh_size = 0;
	if (!strcmp(arguments[2], "registered") || !strcmp(arguments[2], "rowless"))
		enlist(&entry, image, size);
	puts("busy");
	fflush(stdout);
	for (time_t start = time(NULL);; sum += run(1000000))
		if (!strcmp(arguments[2], "late") && !__jit_debug_descriptor.first && time(NULL) - start >= 2)
			enlist(&entry, image, size);
	return (int)sum;
}
