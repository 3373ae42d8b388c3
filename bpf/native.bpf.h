/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One native step by unwind rows (rules.h): the rule at the frame's file offset gives the CFA, the caller's rbp and where its
 * return address lies. What no row covers is left to the frame pointer. */
#ifndef GPUSTROBE_NATIVE_BPF_H
#define GPUSTROBE_NATIVE_BPF_H

struct gs_chunk {
	__u32 words[1024];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct gs_table);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct gs_chunk);
} words SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct gs_rule);
} rules SEC(".maps");

static __always_inline __u32 word_at(__u32 at)
{
	__u32 chunk = at >> 10;
	struct gs_chunk *c = bpf_map_lookup_elem(&words, &chunk);

	return c ? c->words[at & 1023] : 0;
}

/* The rule for a file offset in the mapping at hand: rule 0, GS_CFA_NONE, where no row covers it; NULL if its table is not built
 * yet. A page of 512 bytes has at most 512 rows: 10 halvings. */
static __always_inline struct gs_rule *find_rule(struct gs_scratch *s, __u64 file_offset)
{
	__u32 number = GS_TABLE_NUMBER(s->map_table);
	struct gs_table *t = bpf_map_lookup_elem(&tables, &number);

	if (!number || !t || t->generation != GS_TABLE_GENERATION(s->map_table))
		return 0;
	__u64 page = (file_offset - t->base) >> GS_PAGE_SHIFT;
	__u32 rows = t->rows, low, high, middle;

	if (!t->pages && rows != GS_NO_ROWS)
		return 0;
	number = 0;
	if (file_offset < t->base || page >= t->pages)
		goto found;
	low = word_at(t->index + (__u32)page);
	high = word_at(t->index + (__u32)page + 1);
	for (int i = 0; i < 10 && low < high; i++) {
		middle = (low + high) >> 1;
		if ((word_at(rows + middle) & 0xffff) <= (file_offset & 0xffff))
			low = middle + 1;
		else
			high = middle;
	}
	if (low)
		number = word_at(rows + low - 1) >> GS_ROW_RULE_SHIFT;
found:
	return bpf_map_lookup_elem(&rules, &number);
}

static __always_inline __u64 user_u64(__u64 address, long *failed)
{
	__u64 value = 0;

	*failed |= bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* The kernel's signal frame: a ucontext_t at the stack pointer (asm/sigcontext.h). The interrupted stack may be another one. */
static __always_inline int signal_step(struct gs_scratch *s)
{
	if (bpf_probe_read_user(s->signal, sizeof(s->signal), (void *)(s->sp + SIGNAL_GREGS)))
		return stop(s, GS_END_unreadable_stack);
	SIGNAL_COPY(s->registers, s->signal);
	s->pc = SIGNAL_PC(s->signal);
	s->sp = SIGNAL_SP(s->signal);
	s->fp = SIGNAL_FP(s->signal);
	s->low = s->sp;
	s->is_return = 0;
	return GO_ON;
}

static __always_inline __u64 find_cfa(struct gs_scratch *s, const struct gs_rule *r, long *failed)
{
	__s64 offset = r->cfa_offset;

	switch (r->cfa) {
	case GS_CFA_SP: return s->sp + offset;
	case GS_CFA_BP: return s->fp + offset;
	case GS_CFA_SP_DEREF: return user_u64(s->sp + GS_HIGH(offset), failed) + GS_LOW(offset);
	case GS_CFA_BP_DEREF: return user_u64(s->fp + GS_HIGH(offset), failed) + GS_LOW(offset);
	case GS_CFA_LEAF: return s->is_return ? 0 : s->registers[offset & 15] + GS_HIGH(offset);
	case GS_CFA_PLT: return s->sp + 8 + ((s->pc & 15) >= (__u64)offset ? 8 : 0);
	default: return 0;
	}
}

/* Moves to the caller. [cfa - 16, cfa) in one read: rbp is most often saved there, below the return address. */
static __always_inline int row_step(struct gs_scratch *s, const struct gs_rule *r)
{
	long failed = 0;
	__u64 pair[2], fp = s->fp, cfa;

	s->by_fp = 0;
	if (r->cfa == GS_CFA_STOP)
		return stop(s, GS_END_complete);
	if (r->cfa == GS_CFA_SIGNAL)
		return signal_step(s);
	cfa = find_cfa(s, r, &failed);
	if (failed)
		return stop(s, GS_END_unreadable_stack);
	if (cfa <= s->sp && r->cfa != GS_CFA_BP_DEREF)
		return stop(s, GS_END_bad_cfa);
	if (bpf_probe_read_user(pair, sizeof(pair), (void *)(cfa - 16)))
		return stop(s, GS_END_unreadable_stack);
	if (r->bp == GS_BP_CFA)
		fp = r->bp_offset == -16 ? pair[0] : user_u64(cfa + r->bp_offset, &failed);
	else if (r->bp == GS_BP_BP)
		fp = user_u64(s->fp + r->bp_offset, &failed);
	else if (r->bp == GS_BP_SP)
		fp = user_u64(s->sp + r->bp_offset, &failed);
	else if (r->bp == GS_BP_UNKNOWN)
		fp = 0;
	s->low = s->sp;
	s->sp = cfa;
	s->fp = failed ? 0 : fp;
	s->pc = STRIP_POINTER_AUTH(pair[1]);
	s->is_return = 1;
	if (!s->pc)
		return stop(s, GS_END_complete);
	return GO_ON;
}

#endif
