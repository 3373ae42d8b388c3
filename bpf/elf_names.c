/* SPDX-License-Identifier: Apache-2.0 */
#include "elf_names.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "elf_file.h"

#define PIECE 4096           /* symbols read at a time */
#define BUCKETS 16384
#define SPAN_BUDGET (64ull << 20) /* visits of addresses by symbols: symbols that all cover all addresses cost n * m */
#define TIE_BUDGET 100000    /* names compared for aliases: a file of a million aliases costs no more than this */
#define NO_END UINT64_MAX

struct symbol {
	uint64_t start, size;
	uint64_t name; /* file offset of the name, 0 = none */
	uint64_t name_end; /* of its string table */
	uint32_t section;
	uint32_t rank; /* lower is better */
};

struct pass {
	const struct gs_elf *elf;
	const uint64_t *addresses;
	uint32_t n;
	uint32_t *bucket; /* first address of a bucket and after */
	unsigned shift;
	uint64_t spans, ties;
	struct symbol *inside; /* innermost sized symbol that contains the address */
	struct symbol *before; /* nearest symbol at or before it, whether or not it contains it */
	uint64_t *next;        /* nearest start after it */
};

/* ---- addresses by bucket: one step per symbol where a binary search takes ten ---- */

static void fill_buckets(struct pass *pass)
{
	uint64_t span = pass->addresses[pass->n - 1] - pass->addresses[0];
	uint32_t i = 0;

	while ((span >> pass->shift) >= BUCKETS)
		pass->shift++;
	for (uint32_t b = 0; b < BUCKETS; b++) {
		while (i < pass->n && ((pass->addresses[i] - pass->addresses[0]) >> pass->shift) < b)
			i++;
		pass->bucket[b] = i;
	}
}

/* Index of the first address >= value; n if there is none. */
static inline uint32_t first_at(const struct pass *pass, uint64_t value)
{
	uint32_t i;

	if (value <= pass->addresses[0])
		return 0;
	if (value > pass->addresses[pass->n - 1])
		return pass->n;
	i = pass->bucket[(value - pass->addresses[0]) >> pass->shift];
	if (pass->n - i > 32 && pass->addresses[i + 32] < value) { /* many addresses in one bucket */
		uint32_t low = i + 32, high = pass->n;
		while (high - low > 1) {
			uint32_t middle = low + (high - low) / 2;
			if (pass->addresses[middle] < value)
				low = middle;
			else
				high = middle;
		}
		return high;
	}
	while (pass->addresses[i] < value)
		i++;
	return i;
}

/* ---- which of two symbols names an address better ---- */

static size_t read_name(const struct gs_elf *elf, const struct symbol *symbol, char *to, size_t limit)
{
	size_t done = 0;

	if (!symbol->name)
		return 0;
	while (done < limit && symbol->name + done < symbol->name_end) {
		size_t piece = limit - done < 256 ? limit - done : 256;
		char *end;
		if (piece > symbol->name_end - symbol->name - done)
			piece = (size_t)(symbol->name_end - symbol->name - done);
		if (!gs_elf_read(elf, to + done, piece, symbol->name + done))
			return 0;
		end = memchr(to + done, 0, piece);
		if (end)
			return (size_t)(end - to);
		done += piece;
	}
	return done;
}

/* Equal starts are aliases: visible outside the file beats local, then what people write: fewer leading underscores
 * (write, not __write), strong before weak, shorter, alphabetical. So a name does not depend on the order of the table. */
static int alias_is_better(struct pass *pass, const struct symbol *a, const struct symbol *b)
{
	char name_a[256], name_b[256];
	size_t length_a, length_b, under_a, under_b;

	if ((a->rank & 4) != (b->rank & 4))
		return (a->rank & 4) < (b->rank & 4);
	if (pass->ties++ >= TIE_BUDGET)
		return 0;
	length_a = read_name(pass->elf, a, name_a, sizeof name_a - 1);
	length_b = read_name(pass->elf, b, name_b, sizeof name_b - 1);
	name_a[length_a] = name_b[length_b] = 0;
	if (!length_a || !length_b)
		return length_a > length_b;
	under_a = strspn(name_a, "_");
	under_b = strspn(name_b, "_");
	if (under_a != under_b)
		return under_a < under_b;
	if (a->rank != b->rank)
		return a->rank < b->rank;
	if (length_a != length_b)
		return length_a < length_b;
	return strcmp(name_a, name_b) < 0;
}

static inline void offer(struct pass *pass, struct symbol *best, const struct symbol *symbol)
{
	if (best->section && best->start > symbol->start)
		return;
	if (!best->section || best->start < symbol->start || alias_is_better(pass, symbol, best))
		*best = *symbol;
}

static void place(struct pass *pass, const struct symbol *symbol)
{
	uint32_t at = first_at(pass, symbol->start);
	uint32_t earlier = at; /* the last address before the symbol, with those that equal it */

	if (earlier && symbol->start < pass->next[earlier - 1])
		pass->next[earlier - 1] = symbol->start;
	if (at == pass->n)
		return;
	/* a symbol with a size wins over a label at the same place, as `before` decides gaps by it */
	if (!pass->before[at].section || symbol->start > pass->before[at].start ||
	    (symbol->start == pass->before[at].start && symbol->size && !pass->before[at].size))
		pass->before[at] = *symbol;
	else if (symbol->start == pass->before[at].start && !symbol->size == !pass->before[at].size)
		offer(pass, &pass->before[at], symbol);
	for (uint32_t i = at; i < pass->n && pass->addresses[i] - symbol->start < symbol->size; i++) {
		if (pass->spans++ >= SPAN_BUDGET)
			return;
		offer(pass, &pass->inside[i], symbol);
	}
}

/* ---- one table ---- */

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
static int is_mapping_symbol(const struct gs_elf *elf, const struct symbol *symbol)
{
	char first = 0;

	return elf->header.e_machine == EM_AARCH64 && symbol->name && gs_elf_read(elf, &first, 1, symbol->name) && first == '$';
}

static const char *read_symbols(struct pass *pass, const Elf64_Shdr *table, Elf64_Sym *piece)
{
	const struct gs_elf *elf = pass->elf;
	const Elf64_Shdr *strings;
	uint64_t count = table->sh_size / sizeof *piece;

	if (table->sh_entsize != sizeof *piece || table->sh_link >= elf->n_sections)
		return "corrupt symbol table";
	strings = &elf->sections[table->sh_link];
	if ((table->sh_flags | strings->sh_flags) & SHF_COMPRESSED)
		return "compressed symbol table";
	if (strings->sh_type != SHT_STRTAB || strings->sh_offset > elf->size || strings->sh_size > elf->size - strings->sh_offset)
		return "truncated string table";
	for (uint64_t done = 0; done < count;) {
		size_t some = count - done < PIECE ? (size_t)(count - done) : PIECE;
		if (!gs_elf_read(elf, piece, some * sizeof *piece, table->sh_offset + done * sizeof *piece))
			return "truncated symbol table";
		for (size_t i = 0; i < some; i++) {
			const Elf64_Sym *raw = &piece[i];
			unsigned bind = ELF64_ST_BIND(raw->st_info);
			struct symbol symbol;
			if (!names_code(elf, raw) || raw->st_name >= strings->sh_size)
				continue;
			symbol = (struct symbol){
				.start = raw->st_value, .size = raw->st_size,
				.name = strings->sh_offset + raw->st_name, .name_end = strings->sh_offset + strings->sh_size,
				.section = raw->st_shndx, .rank = bind == STB_LOCAL ? 4 : bind == STB_WEAK ? 1 : 0,
			};
			if (!is_mapping_symbol(elf, &symbol))
				place(pass, &symbol);
		}
		done += some;
	}
	return NULL;
}

/* A table that is broken is no reason to give up what the other one names. */
static const char *read_tables(struct pass *pass)
{
	static const uint32_t kinds[] = {SHT_SYMTAB, SHT_DYNSYM};
	Elf64_Sym *piece = malloc(PIECE * sizeof *piece);
	const char *reason = "no symbols";
	int any = 0;

	if (!piece)
		return "out of memory";
	for (unsigned k = 0; k < 2; k++) {
		for (uint32_t i = 0; i < pass->elf->n_sections; i++) {
			const char *why;
			if (pass->elf->sections[i].sh_type != kinds[k])
				continue;
			why = read_symbols(pass, &pass->elf->sections[i], piece);
			if (why)
				reason = why;
			else
				any = 1;
			break;
		}
	}
	free(piece);
	return any ? NULL : reason;
}

/* ---- answers ---- */

static void spread(struct pass *pass)
{
	for (uint32_t i = 1; i < pass->n; i++)
		if (!pass->before[i].section || pass->before[i].start < pass->before[i - 1].start)
			if (pass->before[i - 1].section)
				pass->before[i] = pass->before[i - 1];
	for (uint32_t i = pass->n - 1; i > 0; i--)
		if (pass->next[i] < pass->next[i - 1])
			pass->next[i - 1] = pass->next[i];
}

static inline uint64_t symbol_end(const struct symbol *symbol)
{
	return symbol->size > NO_END - symbol->start ? NO_END : symbol->start + symbol->size;
}

/* End of the section that holds symbol and address; 0 if it does not hold both. */
static uint64_t common_section_end(const struct gs_elf *elf, const struct symbol *symbol, uint64_t address)
{
	const Elf64_Shdr *section;

	if (symbol->section >= elf->n_sections)
		return 0;
	section = &elf->sections[symbol->section];
	if (symbol->start < section->sh_addr || address - section->sh_addr >= section->sh_size)
		return 0;
	return section->sh_size > NO_END - section->sh_addr ? NO_END : section->sh_addr + section->sh_size;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static const struct symbol *answer(struct pass *pass, uint32_t i, struct gs_elf_name *out)
{
	const struct symbol *inside = &pass->inside[i], *before = &pass->before[i];
	uint64_t address = pass->addresses[i], end;

	memset(out, 0, sizeof *out);
	out->high = pass->next[i];
	if (inside->section) {
		out->how = GS_NAME_SIZED;
		out->start = inside->start;
		/* another symbol begins and ends between: its own addresses are not ours */
		out->low = before->start == inside->start ? inside->start : address;
		out->high = smaller(out->high, symbol_end(inside));
		return inside;
	}
	if (!before->section) {
		out->low = address;
		return NULL;
	}
	if (!before->size && (end = common_section_end(pass->elf, before, address))) {
		out->how = GS_NAME_NEAREST;
		out->start = out->low = before->start;
		out->high = smaller(out->high, end);
		return before;
	}
	out->low = before->size ? symbol_end(before) : address;
	if (out->low > address) /* the span budget ran out before this address */
		out->low = address;
	return NULL;
}

static void write_answers(struct pass *pass, struct gs_elf_name *out, char *text, uint32_t text_size)
{
	const struct symbol *last = NULL;
	uint32_t used = 0;

	for (uint32_t i = 0; i < pass->n; i++) {
		const struct symbol *symbol = answer(pass, i, &out[i]);
		size_t length;
		if (!symbol)
			continue;
		if (last && last->name == symbol->name && out[i - 1].length) {
			out[i].text = out[i - 1].text;
			out[i].length = out[i - 1].length;
			continue;
		}
		last = NULL;
		if (text_size - used < GS_NAME_MAX) {
			out[i].how = GS_NAME_NO_ROOM;
			continue;
		}
		length = read_name(pass->elf, symbol, text + used, GS_NAME_MAX);
		if (!length)
			out[i].how = GS_NAME_NONE;
		out[i].text = used;
		out[i].length = (uint32_t)length;
		used += (uint32_t)length;
		last = symbol;
	}
}

static int sorted(const uint64_t *addresses, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (addresses[i] < addresses[i - 1])
			return 0;
	return 1;
}

static int changed(int fd, const struct stat *first)
{
	struct stat now;

	return fstat(fd, &now) || now.st_size != first->st_size || now.st_mtim.tv_sec != first->st_mtim.tv_sec ||
	       now.st_mtim.tv_nsec != first->st_mtim.tv_nsec;
}

const char *gs_elf_names(int fd, const uint64_t *addresses, uint32_t n, struct gs_elf_name *out, char *text, uint32_t text_size)
{
	struct gs_elf elf;
	struct stat status;
	const char *reason;
	struct pass pass = {.elf = &elf, .addresses = addresses, .n = n};

	if (!n || n > 1u << 20 || text_size < GS_NAME_MAX || !sorted(addresses, n))
		return "bad request";
	if (fstat(fd, &status))
		return "file gone";
	reason = gs_elf_open(&elf, fd);
	if (reason)
		return reason;
	pass.bucket = malloc(BUCKETS * sizeof *pass.bucket);
	pass.inside = calloc(n, sizeof *pass.inside);
	pass.before = calloc(n, sizeof *pass.before);
	pass.next = malloc(n * sizeof *pass.next);
	reason = "out of memory";
	if (pass.bucket && pass.inside && pass.before && pass.next) {
		memset(pass.next, 0xff, n * sizeof *pass.next);
		fill_buckets(&pass);
		reason = read_tables(&pass);
		if (!reason) {
			spread(&pass);
			write_answers(&pass, out, text, text_size);
			if (changed(fd, &status))
				reason = "file changed while it was read";
		}
	}
	free(pass.bucket);
	free(pass.inside);
	free(pass.before);
	free(pass.next);
	gs_elf_close(&elf);
	return reason;
}

/* ---- facts ---- */

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
