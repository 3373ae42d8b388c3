/* SPDX-License-Identifier: Apache-2.0 */
#include "cfi.h"

#include <string.h>

enum { RBP = 6, RSP = 7, RA = 16 };
#define MAX_REMEMBERED 32

/* Bytes not yet read. A read past the end sets `broken` and gives 0; callers look once, at the end of what they parse. */
struct cursor {
	const uint8_t *at, *end;
	uint64_t vaddr; /* of `end`, so that at's own is vaddr - (end - at) */
	int broken;
};

static const uint8_t *take(struct cursor *c, size_t n)
{
	static const uint8_t zeros[8];
	const uint8_t *at = c->at;

	if (n > (size_t)(c->end - c->at)) {
		c->broken = 1;
		c->at = c->end;
		return n <= sizeof zeros ? zeros : NULL;
	}
	c->at += n;
	return at;
}

#define FIXED(name, type)                           \
	static type name(struct cursor *c)          \
	{                                           \
		type value;                         \
		memcpy(&value, take(c, sizeof value), sizeof value); \
		return value;                       \
	}
FIXED(u8, uint8_t)
FIXED(u16, uint16_t)
FIXED(u32, uint32_t)
FIXED(u64, uint64_t)

static uint64_t uleb(struct cursor *c)
{
	uint64_t value = 0;

	for (unsigned shift = 0;; shift += 7) {
		uint8_t byte = u8(c);
		if (shift < 64)
			value |= (uint64_t)(byte & 127) << shift;
		if (!(byte & 128) || c->broken)
			return value;
	}
}

static int64_t sleb(struct cursor *c)
{
	uint64_t value = 0;

	for (unsigned shift = 0;;) {
		uint8_t byte = u8(c);
		if (shift < 64)
			value |= (uint64_t)(byte & 127) << shift;
		shift += 7;
		if (byte & 128 && !c->broken)
			continue;
		if (shift < 64 && byte & 64)
			value |= ~0ULL << shift;
		return (int64_t)value;
	}
}

/* DW_EH_PE encodings: format in the low nibble, what it is relative to above it. */
static uint64_t encoded(struct cursor *c, uint8_t encoding, int relative)
{
	uint64_t own = c->vaddr - (uint64_t)(c->end - c->at), value;

	switch (encoding & 15) {
	case 0x0: case 0x4: case 0xc: value = u64(c); break;
	case 0x1: value = uleb(c); break;
	case 0x2: value = u16(c); break;
	case 0x3: value = u32(c); break;
	case 0x9: value = (uint64_t)sleb(c); break;
	case 0xa: value = (uint64_t)(int16_t)u16(c); break;
	case 0xb: value = (uint64_t)(int32_t)u32(c); break;
	default: c->broken = 1; return 0;
	}
	if (relative && (encoding & 0x70) == 0x10)
		value += own;
	else if (relative && encoding & 0x70)
		c->broken = 1; /* text, data and function relative: never seen for code on x86-64 */
	return value;
}

struct state {
	struct gs_rule rule;
	uint8_t cfa_register; /* the register form; outlives an expression, as in libgcc: OpenSSL's and */
	int64_t cfa_offset;   /* libgcrypt's assembly goes back to it by DW_CFA_def_cfa_register alone */
	uint8_t ra_stop, ra_bad;
};

struct cie {
	size_t offset; /* of its length field; SIZE_MAX = unused slot */
	uint64_t code_align;
	int64_t data_align;
	uint8_t encoding, signal, has_size, usable;
	struct state initial;
};

struct walk {
	const struct gs_cfi_section *section;
	const struct gs_cfi_sink *sink;
	struct gs_cfi_counts *counts;
	struct cie cies[64]; /* by offset: linkers put each CIE before its FDEs, so few are alive at a time */
};

static void set_cfa(struct state *s, uint64_t reg, int64_t offset)
{
	s->cfa_register = (uint8_t)(reg < 17 ? reg : 255);
	s->cfa_offset = offset;
	s->rule.cfa = GS_CFA_NONE; /* a register form; finished by to_rule */
}

static void set_bp(struct state *s, enum gs_bp kind, int64_t offset)
{
	s->rule.bp = (uint8_t)(offset == (int16_t)offset ? kind : GS_BP_UNKNOWN);
	s->rule.bp_offset = (int16_t)(s->rule.bp == GS_BP_UNKNOWN ? 0 : offset);
}

static void set_deref(struct state *s, enum gs_cfa kind, int64_t offset, uint64_t plus)
{
	int fits = offset >= -(1 << 22) && offset < 1 << 22 && plus < 256;

	s->rule.cfa = (uint8_t)(fits ? kind : GS_CFA_BAD);
	s->rule.cfa_offset = (int32_t)(fits ? offset * 256 + (int64_t)plus : 0);
}

/* breg7 8; breg16 0; lit15; and; litN; ge; lit3; shl; plus: what linkers write for lazy PLT entries. */
static int is_plt(const uint8_t *e, size_t n, unsigned *threshold)
{
	static const uint8_t head[] = { 0x77, 8, 0x80, 0, 0x3f, 0x1a }, tail[] = { 0x2a, 0x33, 0x24, 0x22 };

	if (n != sizeof head + 1 + sizeof tail || memcmp(e, head, sizeof head) || memcmp(e + 7, tail, sizeof tail))
		return 0;
	*threshold = e[6] - 0x30u;
	return *threshold < 16;
}

/* bregN offset [deref [plus_uconst k]]: the only other shapes compilers and perlasm emit for the CFA. */
static void cfa_expression(struct state *s, const uint8_t *e, size_t n)
{
	struct cursor c = { e, e + n, 0, 0 };
	unsigned threshold;
	uint8_t op;
	int64_t offset;
	uint64_t plus = 0;

	s->rule.cfa = GS_CFA_BAD;
	if (is_plt(e, n, &threshold)) {
		s->rule.cfa = GS_CFA_PLT;
		s->rule.cfa_offset = (int32_t)threshold;
		return;
	}
	op = u8(&c);
	if (op < 0x70 || op > 0x8f)
		return;
	offset = sleb(&c);
	if (c.at == c.end && !c.broken) {
		set_cfa(s, op - 0x70u, offset);
		return;
	}
	if ((op != 0x70 + RBP && op != 0x70 + RSP) || u8(&c) != 0x06)
		return;
	if (c.at < c.end && u8(&c) == 0x23)
		plus = uleb(&c);
	if (!c.broken && c.at == c.end)
		set_deref(s, op == 0x70 + RBP ? GS_CFA_BP_DEREF : GS_CFA_SP_DEREF, offset, plus);
}

/* Where rbp is saved: bregN offset, the address of the slot. */
static void bp_expression(struct state *s, const uint8_t *e, size_t n)
{
	struct cursor c = { e, e + n, 0, 0 };
	uint8_t op = u8(&c);
	int64_t offset = sleb(&c);

	if (c.broken || c.at != c.end || (op != 0x70 + RBP && op != 0x70 + RSP))
		set_bp(s, GS_BP_UNKNOWN, 0);
	else
		set_bp(s, op == 0x70 + RBP ? GS_BP_BP : GS_BP_SP, offset);
}

static void saved_at(struct state *s, uint64_t reg, int64_t offset)
{
	if (reg == RBP)
		set_bp(s, GS_BP_CFA, offset);
	else if (reg == RA) {
		s->ra_bad = offset != -8;
		s->ra_stop = 0;
	}
}

static void restored(struct state *s, const struct state *initial, uint64_t reg)
{
	if (reg == RBP) {
		s->rule.bp = initial->rule.bp;
		s->rule.bp_offset = initial->rule.bp_offset;
	} else if (reg == RA) {
		s->ra_stop = initial->ra_stop;
		s->ra_bad = initial->ra_bad;
	}
}

static void not_saved(struct state *s, uint64_t reg, int undefined)
{
	if (reg == RBP)
		set_bp(s, undefined ? GS_BP_UNKNOWN : GS_BP_SAME, 0);
	else if (reg == RA) {
		s->ra_stop = (uint8_t)undefined;
		s->ra_bad = !undefined;
	}
}

static void elsewhere(struct state *s, uint64_t reg)
{
	if (reg == RBP)
		set_bp(s, GS_BP_UNKNOWN, 0);
	else if (reg == RA)
		s->ra_bad = 1;
}

static struct gs_rule to_rule(const struct state *s, struct gs_cfi_counts *counts)
{
	struct gs_rule r = s->rule;
	int64_t offset = s->rule.cfa == GS_CFA_NONE ? s->cfa_offset : r.cfa_offset;

	if (s->ra_stop) {
		r = (struct gs_rule){ .cfa = GS_CFA_STOP };
		return r;
	}
	if (r.cfa == GS_CFA_NONE) {
		if (s->cfa_register == RSP || s->cfa_register == RBP)
			r.cfa = s->cfa_register == RSP ? GS_CFA_SP : GS_CFA_BP;
		else if (s->cfa_register < 16 && offset >= -(1 << 22) && offset < 1 << 22) {
			r.cfa = GS_CFA_LEAF;
			offset = offset * 256 + s->cfa_register;
		} else
			r.cfa = GS_CFA_BAD;
	}
	if (offset != (int32_t)offset || s->ra_bad)
		r.cfa = GS_CFA_BAD;
	if (r.cfa == GS_CFA_BAD) {
		counts->bad_rules++;
		r = (struct gs_rule){ .cfa = GS_CFA_BAD };
		return r;
	}
	r.cfa_offset = (int32_t)offset;
	return r;
}

struct run {
	struct walk *walk;
	const struct cie *cie;
	struct state s, remembered[MAX_REMEMBERED];
	unsigned depth;
	uint64_t start, delta; /* delta: bytes into the function */
	int emit, full;
};

static void advance(struct run *r, uint64_t to)
{
	if (r->emit && to > r->delta && !r->walk->sink->row(r->walk->sink->to, r->delta, to_rule(&r->s, r->walk->counts)))
		r->full = 1;
	if (to > r->delta)
		r->delta = to;
}

/* The instructions above 0x3f carry an operand in the opcode; the rest is below. */
static void extended(struct run *r, struct cursor *c, uint8_t op)
{
	struct state *s = &r->s;
	uint64_t reg, n;
	int64_t da = r->cie->data_align;
	const uint8_t *block;

	switch (op) {
	case 0x00: break;
	case 0x01: advance(r, encoded(c, r->cie->encoding, 1) - r->start); break;
	case 0x02: advance(r, r->delta + u8(c) * r->cie->code_align); break;
	case 0x03: advance(r, r->delta + u16(c) * r->cie->code_align); break;
	case 0x04: advance(r, r->delta + u32(c) * r->cie->code_align); break;
	case 0x1d: advance(r, r->delta + u64(c) * r->cie->code_align); break;
	case 0x05: reg = uleb(c); saved_at(s, reg, (int64_t)uleb(c) * da); break;
	case 0x11: reg = uleb(c); saved_at(s, reg, sleb(c) * da); break;
	case 0x2f: reg = uleb(c); saved_at(s, reg, -(int64_t)uleb(c) * da); break;
	case 0x06: restored(s, &r->cie->initial, uleb(c)); break;
	case 0x07: not_saved(s, uleb(c), 1); break;
	case 0x08: not_saved(s, uleb(c), 0); break;
	case 0x09: reg = uleb(c); uleb(c); elsewhere(s, reg); break;
	case 0x0a:
		if (r->depth < MAX_REMEMBERED)
			r->remembered[r->depth++] = *s;
		else
			c->broken = 1;
		break;
	case 0x0b:
		if (r->depth)
			*s = r->remembered[--r->depth];
		else
			c->broken = 1;
		break;
	case 0x0c: reg = uleb(c); set_cfa(s, reg, (int64_t)uleb(c)); break;
	case 0x12: reg = uleb(c); set_cfa(s, reg, sleb(c) * da); break;
	case 0x0d: set_cfa(s, uleb(c), s->cfa_offset); break;
	case 0x0e: set_cfa(s, s->cfa_register, (int64_t)uleb(c)); break;
	case 0x13: set_cfa(s, s->cfa_register, sleb(c) * da); break;
	case 0x0f:
		n = uleb(c);
		block = n <= (size_t)(c->end - c->at) ? take(c, n) : NULL;
		if (block)
			cfa_expression(s, block, n);
		else
			c->broken = 1;
		break;
	case 0x10: case 0x16: /* expression, val_expression */
		reg = uleb(c);
		n = uleb(c);
		block = n <= (size_t)(c->end - c->at) ? take(c, n) : NULL;
		if (!block)
			c->broken = 1;
		else if (op == 0x10 && reg == RBP)
			bp_expression(s, block, n);
		else
			elsewhere(s, reg);
		break;
	case 0x14: reg = uleb(c); uleb(c); elsewhere(s, reg); break;
	case 0x15: reg = uleb(c); sleb(c); elsewhere(s, reg); break;
	case 0x2d: break; /* GNU_window_save: no meaning on x86-64 */
	case 0x2e: uleb(c); break; /* GNU_args_size */
	default: c->broken = 1;
	}
}

static void run(struct run *r, struct cursor *c)
{
	while (c->at < c->end && !c->broken && !r->full) {
		uint8_t op = u8(c);
		switch (op >> 6) {
		case 1: advance(r, r->delta + (op & 63) * r->cie->code_align); break;
		case 2: saved_at(&r->s, op & 63, (int64_t)uleb(c) * r->cie->data_align); break;
		case 3: restored(&r->s, &r->cie->initial, op & 63); break;
		default: extended(r, c, op);
		}
	}
}

/* One entry's extent: [body, end) behind its length field; 0 at the terminator or when the section breaks off. */
static int entry_at(const struct gs_cfi_section *s, size_t offset, struct cursor *body, int *wide)
{
	struct cursor c = { s->data + offset, s->data + s->size, s->vaddr + s->size, 0 };
	uint64_t length = u32(&c);

	*wide = length == 0xffffffff;
	if (*wide)
		length = u64(&c);
	if (c.broken || length > (size_t)(c.end - c.at))
		return 0;
	c.vaddr -= (uint64_t)(c.end - c.at) - length;
	c.end = c.at + length;
	*body = c;
	return 1;
}

static void parse_augmentation(struct cie *cie, struct cursor *c, const char *text)
{
	uint64_t length = uleb(c);
	struct cursor data = *c;

	if (!take(c, length) && length)
		return;
	data.vaddr -= (uint64_t)(data.end - c->at);
	data.end = c->at;
	for (; *text && !data.broken; text++) {
		switch (*text) {
		case 'R': cie->encoding = u8(&data); break;
		case 'L': u8(&data); break;
		case 'P': encoded(&data, u8(&data) & 15, 0); break;
		case 'S': cie->signal = 1; break;
		case 'B': case 'G': break;
		default: cie->usable = 0;
		}
	}
	if (data.broken)
		cie->usable = 0;
}

static void parse_cie(struct walk *w, size_t offset, struct cie *cie)
{
	struct cursor c;
	struct run r = { .walk = w, .cie = cie };
	const char *text;
	uint8_t version;
	int wide;

	memset(cie, 0, sizeof *cie);
	cie->offset = offset;
	if (offset >= w->section->size || !entry_at(w->section, offset, &c, &wide))
		return;
	take(&c, wide && w->section->debug_frame ? 8 : 4);
	version = u8(&c);
	text = (const char *)c.at;
	if (c.broken || !memchr(c.at, 0, (size_t)(c.end - c.at)))
		return;
	take(&c, strlen(text) + 1);
	if (version == 4 && (u8(&c) != 8 || u8(&c) != 0))
		return;
	if (version != 1 && version != 3 && version != 4)
		return;
	cie->code_align = uleb(&c);
	cie->data_align = sleb(&c);
	if ((version == 1 ? u8(&c) : uleb(&c)) != RA)
		return;
	cie->usable = 1;
	cie->has_size = *text == 'z';
	if (cie->has_size)
		parse_augmentation(cie, &c, text + 1);
	else if (*text)
		cie->usable = 0;
	set_cfa(&r.s, RSP, 8);
	run(&r, &c);
	cie->initial = r.s;
	if (c.broken)
		cie->usable = 0;
}

static const struct cie *cie_at(struct walk *w, size_t offset)
{
	struct cie *slot = &w->cies[(offset >> 3) & 63];

	if (slot->offset != offset) {
		parse_cie(w, offset, slot);
		w->counts->unsupported += !slot->usable;
	}
	return slot;
}

static int parse_fde(struct walk *w, struct cursor *c, const struct cie *cie)
{
	struct run r = { .walk = w, .cie = cie, .s = cie->initial, .emit = 1 };
	uint64_t size, length;

	r.start = encoded(c, cie->encoding, 1);
	size = encoded(c, cie->encoding & 15, 0);
	if (cie->has_size) {
		length = uleb(c);
		if (length > (size_t)(c->end - c->at))
			c->broken = 1;
		else
			take(c, length);
	}
	if (c->broken) {
		w->counts->unsupported++;
		return 1;
	}
	if (!size || !w->sink->function(w->sink->to, r.start, size))
		return 1;
	w->counts->functions++;
	if (cie->signal)
		return w->sink->row(w->sink->to, 0, (struct gs_rule){ .cfa = GS_CFA_SIGNAL });
	run(&r, c);
	if (c->broken) {
		w->counts->unsupported++;
		r.s.rule.cfa = GS_CFA_BAD;
	}
	return !r.full && w->sink->row(w->sink->to, r.delta, to_rule(&r.s, w->counts));
}

int gs_cfi_walk(const struct gs_cfi_section *section, const struct gs_cfi_sink *sink, struct gs_cfi_counts *counts)
{
	struct walk w = { .section = section, .sink = sink, .counts = counts };
	size_t at = 0;

	for (unsigned i = 0; i < 64; i++)
		w.cies[i].offset = SIZE_MAX;
	while (section->size - at >= 4) {
		struct cursor c;
		const uint8_t *id_at;
		uint64_t id;
		size_t cie;
		int wide;

		if (!entry_at(section, at, &c, &wide))
			return 0;
		at = (size_t)(c.end - section->data);
		if (c.at == c.end) /* terminator; other objects' tables may follow it */
			continue;
		id_at = c.at;
		id = wide && section->debug_frame ? u64(&c) : u32(&c);
		if (section->debug_frame ? id == (wide ? UINT64_MAX : 0xffffffff) : id == 0)
			continue;
		cie = section->debug_frame ? id : (size_t)(id_at - section->data) - id;
		if (c.broken || cie >= section->size) {
			counts->unsupported++;
			continue;
		}
		if (cie_at(&w, cie)->usable && !parse_fde(&w, &c, cie_at(&w, cie)))
			return 0;
	}
	return 1;
}
