/* SPDX-License-Identifier: Apache-2.0 */
#include "python_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "elf_file.h"

#define MAX_SYMBOLS (64u << 20) /* bytes of one symbol or string table */
#define MAX_INTERPRETERS 8
#define MAX_THREADS 64
/* glibc keeps the first 32 pthread-specific values inside struct pthread, 0x310 bytes in on x86-64 since 2.17. */
#define SLOTS_FROM 0x2f0u
#define SLOTS_TO 0x560u

/* Offsets of a version: those of gs_python, and the way to the list of threads. From the headers of 3.9.18, 3.10.13, 3.11.7 and
 * 3.12.1 (offsetof); from 3.13 on the interpreter describes itself (_Py_DebugOffsets). */
struct layout {
	uint32_t version;
	uint16_t interpreters_head, interpreter_next, threads_head, thread_next;
	struct gs_python p;
};

static const struct layout layouts[] = {
	{ 0x309, 32, 0, 8, 8,
	  { .style = GS_PYTHON_PC_RANGE, .thread_id = 176, .current = 24, .code = 32, .previous = 24, .instruction = 104,
	    .first_line = 40, .name = 112, .lines = 120 } },
	{ 0x30a, 32, 0, 8, 8,
	  { .style = GS_PYTHON_CFRAME, .thread_id = 176, .current = 24, .cframe = 48, .cframe_previous = 8, .code = 32, .previous = 24,
	    .instruction = 96, .first_line = 40, .name = 112, .lines = 120 } },
	{ 0x30b, 40, 0, 16, 8,
	  { .style = GS_PYTHON_ENTRY, .thread_id = 152, .current = 56, .cframe_frame = 8, .cframe_previous = 16, .code = 32, .previous = 48,
	    .instruction = 56, .owner = 68, .first_line = 72, .name = 128, .lines = 136, .bytecode = 184 } },
	{ 0x30c, 40, 0, 72, 8,
	  { .style = GS_PYTHON_OWNER_CFRAME, .thread_id = 136, .current = 56, .cframe_frame = 0, .cframe_previous = 8, .code = 0,
	    .previous = 8, .instruction = 56, .owner = 70, .first_line = 68, .name = 128, .lines = 136, .bytecode = 192 } },
};

/* Places of the fields we need in _Py_DebugOffsets, counted in u64. */
struct described {
	uint32_t version;
	uint8_t interpreters_head, interpreter_next, threads_head, thread_next, current_frame, thread_id;
	uint8_t previous, executable, instr_ptr, owner, qualname, linetable, firstlineno, code_adaptive, count;
};
static const struct described descriptions[] = {
	{ 0x30d, 5, 8, 9, 21, 23, 24, 29, 30, 31, 33, 37, 38, 39, 43, 44 },
	{ 0x30e, 5, 8, 9, 24, 26, 27, 32, 33, 34, 36, 42, 43, 44, 48, 49 },
};

int gs_read_memory(uint32_t pid, void *to, size_t size, uint64_t from)
{
	struct iovec local = { to, size }, remote = { (void *)(uintptr_t)from, size };

	return process_vm_readv((pid_t)pid, &local, 1, &remote, 1, 0) == (ssize_t)size;
}

static uint64_t pointer_at(uint32_t pid, uint64_t from)
{
	uint64_t value = 0;

	return gs_read_memory(pid, &value, sizeof value, from) ? value : 0;
}

static void look_up(const struct gs_elf *elf, const char *symbols, const char *strings, struct gs_python_file *f)
{
	const struct {
		const char *name;
		uint64_t *value;
	} wanted[] = { { "_PyRuntime", &f->runtime }, { "PyCode_Type", &f->code_type }, { "Py_Version", &f->version_symbol },
		       { "_PyEval_EvalFrameDefault", &f->eval_start } };
	const Elf64_Shdr *table = gs_elf_section(elf, symbols), *names = gs_elf_section(elf, strings);
	size_t size = 0, names_size = 0;
	const char *reason;
	uint8_t *entries, *text;

	if (!table || !names)
		return;
	entries = gs_elf_load(elf, table, MAX_SYMBOLS, &size, &reason);
	text = gs_elf_load(elf, names, MAX_SYMBOLS, &names_size, &reason);
	for (size_t at = 0; entries && text && at + sizeof(Elf64_Sym) <= size; at += sizeof(Elf64_Sym)) {
		Elf64_Sym symbol;
		memcpy(&symbol, entries + at, sizeof symbol);
		for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
			size_t length = strlen(wanted[i].name) + 1;
			if (symbol.st_shndx == SHN_UNDEF || symbol.st_name > names_size || names_size - symbol.st_name < length ||
			    memcmp(text + symbol.st_name, wanted[i].name, length))
				continue;
			*wanted[i].value = symbol.st_value;
			if (wanted[i].value == &f->eval_start)
				f->eval_end = symbol.st_value + symbol.st_size;
		}
	}
	free(entries);
	free(text);
}

/* "libpython3.9.so.1.0", "python3.9": the version that 3.9 and 3.10 keep nowhere else. */
static uint32_t version_in_name(const char *path)
{
	const char *name = strrchr(path, '/'), *at = strstr(name ? name : path, "python");
	unsigned major, minor;

	return at && sscanf(at, "python%1u.%2u", &major, &minor) == 2 ? major << 8 | minor : 0;
}

int gs_python_probe(int fd, const char *path, struct gs_python_file *out)
{
	struct gs_elf elf;

	memset(out, 0, sizeof *out);
	if (gs_elf_open(&elf, fd))
		return 0;
	look_up(&elf, ".dynsym", ".dynstr", out);
	if (!out->runtime)
		look_up(&elf, ".symtab", ".strtab", out);
	for (unsigned i = 0; i < elf.header.e_phnum; i++)
		if (elf.segments[i].p_type == PT_LOAD && elf.segments[i].p_flags & PF_X)
			out->text_delta = elf.segments[i].p_vaddr - elf.segments[i].p_offset;
	out->version = version_in_name(path);
	gs_elf_close(&elf);
	return out->runtime && out->code_type;
}

static uint16_t offset_of(uint64_t value)
{
	return value < 65536 ? (uint16_t)value : 65535;
}

/* What the interpreter says of itself. 0 if it is no such description or one of a build we do not know. */
static int described_layout(uint32_t pid, uint64_t runtime, uint32_t version, struct layout *l)
{
	const struct described *d = NULL;
	uint64_t v[64];

	for (unsigned i = 0; i < sizeof descriptions / sizeof *descriptions; i++)
		if (descriptions[i].version == version)
			d = &descriptions[i];
	if (!d || !gs_read_memory(pid, v, sizeof v, runtime) || memcmp(v, "xdebugpy", 8) || v[1] >> 16 != version || v[2])
		return 0;
	*l = (struct layout){ version, offset_of(v[d->interpreters_head]), offset_of(v[d->interpreter_next]),
			      offset_of(v[d->threads_head]), offset_of(v[d->thread_next]),
			      { .style = GS_PYTHON_OWNER, .thread_id = offset_of(v[d->thread_id]), .current = offset_of(v[d->current_frame]),
				.code = offset_of(v[d->executable]), .previous = offset_of(v[d->previous]),
				.instruction = offset_of(v[d->instr_ptr]), .owner = offset_of(v[d->owner]),
				.first_line = offset_of(v[d->firstlineno]), .name = offset_of(v[d->qualname]),
				.lines = offset_of(v[d->linetable]), .bytecode = offset_of(v[d->code_adaptive]) } };
	return 1;
}

static int find_layout(uint32_t pid, uint64_t runtime, uint32_t version, struct layout *l)
{
	for (unsigned i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i].version == version) {
			*l = layouts[i];
			return 1;
		}
	return described_layout(pid, runtime, version, l);
}

/* Bytes from a thread's fs base to the slot that points to its thread state; 0 if there is none. */
static uint32_t find_slot(uint32_t pid, uint64_t base, uint64_t thread_state)
{
	uint64_t area[(SLOTS_TO - SLOTS_FROM) / 8];

	if (!gs_read_memory(pid, area, sizeof area, base + SLOTS_FROM))
		return 0;
	for (unsigned i = 0; i < sizeof area / sizeof *area; i++)
		if (area[i] == thread_state)
			return SLOTS_FROM + i * 8;
	return 0;
}

/* Any thread will do: the key is the process's. One that is just starting may not have its slot set, hence all. */
static int look_for_slot(uint32_t pid, uint64_t runtime, const struct layout *l, uint32_t *slot)
{
	uint64_t interpreter = pointer_at(pid, runtime + l->interpreters_head);
	int threads = 0;

	for (int i = 0; interpreter && i < MAX_INTERPRETERS; i++) {
		uint64_t state = pointer_at(pid, interpreter + l->threads_head);
		for (; state && threads < MAX_THREADS; threads++) {
			uint64_t base = pointer_at(pid, state + l->p.thread_id);
			*slot = base ? find_slot(pid, base, state) : 0;
			if (*slot)
				return GS_PYTHON_FOUND;
			state = pointer_at(pid, state + l->thread_next);
		}
		interpreter = pointer_at(pid, interpreter + l->interpreter_next);
	}
	return threads > 1 ? GS_PYTHON_UNSUPPORTED : GS_PYTHON_NOT_YET;
}

int gs_python_attach(uint32_t tgid, uint64_t start, uint64_t file_offset, const struct gs_python_file *f, struct gs_python *out)
{
	uint64_t bias = start - file_offset - f->text_delta;
	uint32_t version = f->version, hex = 0;
	struct layout l;
	int found;

	if (f->version_symbol) {
		if (!gs_read_memory(tgid, &hex, sizeof hex, bias + f->version_symbol))
			return GS_PYTHON_NOT_YET;
		version = hex >> 16;
	}
	if (!find_layout(tgid, bias + f->runtime, version, &l))
		return version < 0x30d ? GS_PYTHON_UNSUPPORTED : GS_PYTHON_NOT_YET;
	found = look_for_slot(tgid, bias + f->runtime, &l, &l.p.slot);
	if (found != GS_PYTHON_FOUND)
		return found;
	*out = l.p;
	out->version = (uint16_t)version;
	out->code_type = bias + f->code_type;
	out->eval_start = bias + f->eval_start;
	out->eval_end = bias + f->eval_end;
	return GS_PYTHON_FOUND;
}
