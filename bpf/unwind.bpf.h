/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The stepping loop: each step names the frame at s->pc and finds its caller by unwind rows (native.bpf.h), where there are none
 * by the frame pointer, where that leads to no return address by guessing (guess.bpf.h); or it deals with one Python frame.
 *
 * Words hold the address of the frame's own instruction: for a return address that is the byte before it, inside the call. It
 * is subtracted here and nowhere else for user frames, because only the walk knows which addresses are return addresses (the
 * frame below a signal handler is not). */
#ifndef GPUSTROBE_UNWIND_BPF_H
#define GPUSTROBE_UNWIND_BPF_H

#define GS_STEPS 16     /* a program; 16 native or Python steps verify in 120 k instructions */
#define GS_MAX_FRAMES 384
#define GS_MAX_TAILS 29 /* the kernel allows 33 tail calls */

enum { GO_ON, STOP, GUESS };

static __always_inline void push(struct gs_scratch *s, __u64 word)
{
	s->words[s->n & GS_WORD_MASK] = word;
	s->n++;
}

/* The row of `mappings` that holds the address; 13 halvings for 4096 rows. */
static __always_inline bool find_mapping(struct gs_scratch *s, __u64 address)
{
	__u32 low = s->first, high = s->first + s->count, middle;
	struct gs_mapping *m;

	for (int i = 0; i < 13 && low < high; i++) {
		middle = (low + high) >> 1;
		m = bpf_map_lookup_elem(&mappings, &middle);
		if (!m)
			return false;
		if (m->start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == s->first)
		return false;
	low--;
	m = bpf_map_lookup_elem(&mappings, &low);
	if (!m || address < m->start || address >= m->end)
		return false;
	s->map_start = m->start;
	s->map_end = m->end;
	s->map_offset = m->file_offset;
	s->map_file = m->file_id;
	s->map_table = m->table;
	return true;
}

static __always_inline int stop(struct gs_scratch *s, __u32 end)
{
	s->end = end;
	return STOP;
}

/* [fp] = caller's fp, [fp + 8] = return address, on x86-64 and arm64 alike. A frame pointer that does not point up the stack
 * belongs to code that keeps none, or to the thread's first frame: which, it cannot tell. */
static __always_inline int frame_pointer_step(struct gs_scratch *s)
{
	__u64 frame[2];

	if (s->by_fp && !s->fp)
		return stop(s, GS_END_complete); /* the ABI's mark of the first frame, read from a frame that was one */
	if (s->fp < s->sp || (s->fp & 7))
		return stop(s, GS_END_frame_pointer);
	if (bpf_probe_read_user(frame, sizeof(frame), (void *)s->fp))
		return stop(s, GS_END_unreadable_stack);
	if (!frame[1])
		return stop(s, GS_END_frame_pointer);
	s->low = s->sp;
	s->sp = s->fp + 16;
	s->fp = frame[0];
	s->pc = STRIP_POINTER_AUTH(frame[1]);
	s->is_return = 1;
	return GO_ON;
}

/* An address in no mapping: the leaf's is certainly code that the table lacks; one that a frame pointer led to may as well be
 * any word of memory, so it is no frame, and no reason to list the mappings again. */
static __always_inline int unmapped(struct gs_scratch *s, __u64 address)
{
	if (s->is_return && s->by_fp)
		return stop(s, GS_END_frame_pointer);
	s->sample.flags |= GS_SAMPLE_UNRESOLVED;
	push(s, address);
	s->frames++;
	return stop(s, GS_END_no_mapping);
}

#include "native.bpf.h"
#include "python.bpf.h"
#include "guess.bpf.h"

/* Tries the frame pointer; the next step, which knows the mapping, proves what it led to. */
static __always_inline int try_frame_pointer(struct gs_scratch *s)
{
	s->back[0] = s->pc;
	s->back[1] = s->sp;
	s->back[2] = s->fp;
	s->back[3] = s->is_return;
	if (frame_pointer_step(s) == STOP)
		return s->end == GS_END_complete ? STOP : GUESS;
	s->unproven = 1;
	return GO_ON;
}

static __always_inline int disproved(struct gs_scratch *s)
{
	s->unproven = 0;
	s->pc = s->back[0];
	s->sp = s->back[1];
	s->fp = s->back[2];
	s->is_return = s->back[3];
	return GUESS;
}

static __always_inline bool proved(struct gs_scratch *s)
{
	__u64 target;

	if (!frame_follows(s, s->back[2], s->fp) && !call_before(s->pc, &target))
		return false;
	s->unproven = 0;
	s->by_fp = 1;
	return true;
}

/* The native walk is over. Python frames that found no place in it follow, then END. */
static __always_inline int native_end(struct gs_scratch *s)
{
	if (!s->python.n && !s->python.frame)
		return STOP;
	if (s->end == GS_END_complete)
		s->end = GS_END_python_unplaced;
	s->failed = 1;
	s->mode = s->python.n ? MODE_EMIT : MODE_SCAN;
	return GO_ON;
}

static __always_inline int native_step(struct gs_scratch *s)
{
	__u64 address = s->pc - s->is_return;
	__u64 word = address & ((1ULL << GS_WORD_SHIFT) - 1);
	struct gs_rule *rule = 0;
	bool none = false;
	int result;

	if (s->frames >= GS_MAX_FRAMES)
		return stop(s, GS_END_too_deep);
	if (s->count) {
		if ((address < s->map_start || address >= s->map_end) && !find_mapping(s, address))
			return s->unproven ? disproved(s) : unmapped(s, word);
		if (s->unproven && !proved(s))
			return disproved(s);
		__u64 offset = address - s->map_start + s->map_offset;

		if (s->map_table)
			rule = find_rule(s, offset);
		none = !s->map_table || (rule && rule->cfa == GS_CFA_NONE);
		if (s->map_file)
			word = (__u64)(s->guessed ? GS_GUESSED : GS_NATIVE) << GS_WORD_SHIFT | (__u64)s->map_file << GS_FILE_SHIFT |
			       (offset & GS_OFFSET_MASK);
		else if (s->guessed)
			word |= (__u64)GS_RAW_GUESSED << GS_WORD_SHIFT;
		s->guessed = 0;
	}
	push(s, word);
	s->frames++;
	if (none && s->start_stack && s->sp + GS_FIRST_FRAME >= s->start_stack)
		result = STOP;
	else if (none)
		result = s->is_return ? try_frame_pointer(s) : GUESS;
	else
		result = rule ? row_step(s, rule) : frame_pointer_step(s);
	if (result == GO_ON && is_activation(s, address)) {
		if (!none) {
			s->n--; /* its Python frames stand in its place */
			s->frames--;
		}
		s->mode = MODE_EMIT;
	} else if (result == GO_ON) {
		pass_empty_activation(s);
	}
	return result;
}

static __always_inline int step(struct gs_scratch *s)
{
	if (s->mode == MODE_SCAN)
		return scan_step(s);
	if (s->mode == MODE_EMIT)
		return emit_step(s);
	if (s->mode == MODE_OVER)
		return native_end(s);
	int result = native_step(s);

	return result == STOP ? native_end(s) : result;
}

static __always_inline int unwind(struct gs_scratch *s)
{
	int result;

	for (int i = 0; i < GS_STEPS; i++)
		if ((result = step(s)) != GO_ON)
			return result;
	return GO_ON;
}

#endif
