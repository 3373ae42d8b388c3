/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

enum { RBP = 6, RSP = 7 };
#define GREGS 40 /* bytes into ucontext_t: r8-r15 rdi rsi rbp rbx rdx rax rcx rsp rip (asm/sigcontext.h) */

struct walk {
	const struct gs_stack_copy *copy;
	const uint64_t *words;
	uint64_t pc, sp, fp, start_stack;
	int is_return, by_fp;
	int failed; /* a read outside the copy */
};

static uint64_t word_at(struct walk *w, uint64_t address)
{
	uint64_t offset = address - w->copy->registers[RSP];

	if (address < w->copy->registers[RSP] || offset % 8 || offset / 8 >= w->copy->n) {
		w->failed = 1;
		return 0;
	}
	return w->words[offset / 8];
}

static uint64_t find_cfa(struct walk *w, const struct gs_rule *r)
{
	int64_t offset = r->cfa_offset;

	switch (r->cfa) {
	case GS_CFA_SP: return w->sp + offset;
	case GS_CFA_BP: return w->fp + offset;
	case GS_CFA_SP_DEREF: return word_at(w, w->sp + GS_HIGH(offset)) + GS_LOW(offset);
	case GS_CFA_BP_DEREF: return word_at(w, w->fp + GS_HIGH(offset)) + GS_LOW(offset);
	case GS_CFA_LEAF: return w->is_return ? 0 : w->copy->registers[offset & 15] + GS_HIGH(offset);
	case GS_CFA_PLT: return w->sp + 8 + ((w->pc & 15) >= (uint64_t)offset ? 8 : 0);
	default: return 0;
	}
}

static int leave_signal(struct walk *w)
{
	uint64_t gregs = w->sp + GREGS;

	w->fp = word_at(w, gregs + 10 * 8);
	w->pc = word_at(w, gregs + 16 * 8);
	w->sp = word_at(w, gregs + 15 * 8);
	w->is_return = 0;
	return w->failed ? GS_END_unreadable_stack : -1;
}

/* Code without rows: by the frame pointer, which the mapping of what it leads to has to bear out. */
static int step_by_fp(struct walk *w)
{
	uint64_t fp = w->fp;

	if (w->sp >= w->start_stack - GS_FIRST_FRAME)
		return GS_END_complete;
	if (fp < w->sp)
		return GS_END_frame_pointer;
	w->fp = word_at(w, fp);
	w->pc = word_at(w, fp + 8);
	w->sp = fp + 16;
	w->is_return = w->by_fp = 1;
	return w->failed || !w->pc ? GS_END_frame_pointer : -1;
}

/* To the caller: -1, or the end. */
static int step(struct walk *w, const struct gs_rule *r)
{
	uint64_t cfa, fp = w->fp;

	if (r->cfa == GS_CFA_STOP)
		return GS_END_complete;
	if (r->cfa == GS_CFA_SIGNAL)
		return leave_signal(w);
	if (r->cfa == GS_CFA_NONE)
		return step_by_fp(w);
	w->by_fp = 0;
	cfa = find_cfa(w, r);
	if (w->failed)
		return GS_END_unreadable_stack;
	if (cfa <= w->sp && r->cfa != GS_CFA_BP_DEREF)
		return GS_END_bad_cfa;
	if (r->bp == GS_BP_CFA)
		fp = word_at(w, cfa + (int64_t)r->bp_offset);
	else if (r->bp == GS_BP_BP)
		fp = word_at(w, w->fp + (int64_t)r->bp_offset);
	else if (r->bp == GS_BP_SP)
		fp = word_at(w, w->sp + (int64_t)r->bp_offset);
	w->fp = w->failed || r->bp == GS_BP_UNKNOWN ? 0 : fp;
	w->failed = 0;
	w->pc = word_at(w, cfa - 8);
	w->sp = cfa;
	w->is_return = 1;
	if (w->failed)
		return GS_END_unreadable_stack;
	return w->pc ? -1 : GS_END_complete;
}

void gs_replay(const struct gs_stack_copy *copy, uint64_t start_stack, gs_rule_at rule_at, void *context, struct gs_replay *out)
{
	struct walk w = { .copy = copy, .words = (const uint64_t *)(copy + 1), .pc = copy->pc, .sp = copy->registers[RSP],
			  .fp = copy->registers[RBP], .start_stack = start_stack ? start_stack : UINT64_MAX };
	struct gs_rule rule;
	int end = -1;

	out->n = 0;
	while (end < 0) {
		uint64_t address = w.pc - (uint64_t)w.is_return;

		if (out->n == GS_REPLAY_FRAMES) {
			end = GS_END_too_deep;
		} else if (!rule_at(context, address, &rule)) {
			end = w.by_fp ? GS_END_frame_pointer : GS_END_no_mapping;
		} else {
			out->addresses[out->n++] = address;
			end = step(&w, &rule);
		}
	}
	out->end = (uint32_t)end;
}
