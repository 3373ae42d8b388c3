/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* CPython frames in the native walk. SCAN reads the frames of the next eval-loop activation into `pending` until it knows its
 * marker; the native walk goes on until a frame encloses that marker; EMIT puts the frames in that frame's place. Where the
 * native walk fails first, what is left of the Python stack follows all the same, before the END that says so. */
#ifndef GPUSTROBE_PYTHON_BPF_H
#define GPUSTROBE_PYTHON_BPF_H

#define GS_EMIT_AT_ONCE 4
#define GS_OWNER_C_STACK 3 /* FRAME_OWNED_BY_CSTACK (3.12, 3.13), FRAME_OWNED_BY_INTERPRETER (3.14) */
#define GS_TAG_BITS 7ULL   /* 3.14 tags references: the lowest bits are not part of the address */

enum { MODE_NATIVE, MODE_SCAN, MODE_EMIT, MODE_OVER /* the native walk found no way on */ };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gs_python);
} pythons SEC(".maps");

static __always_inline __u64 frame_field(const struct gs_python_walk *w, __u16 offset)
{
	return *(const __u64 *)((const char *)w->frame_bytes + (offset & (GS_PYTHON_FRAME_BYTES - 8)));
}

static __always_inline __u64 code_field(const struct gs_python_walk *w, __u16 offset)
{
	offset &= 0xf8;
	return offset <= GS_PYTHON_CODE_BYTES - 8 ? *(const __u64 *)((const char *)w->code_bytes + offset) : 0;
}

/* Two words into pending for the frame at hand, unless what it holds is no code object (shims between activations). A code
 * object freed and its memory used again for another one differs in `check`. */
static __always_inline void keep_frame(struct gs_python_walk *w)
{
	__u64 code = frame_field(w, w->p.code) & ~GS_TAG_BITS, instruction = frame_field(w, w->p.instruction), line, mixed;

	if (bpf_probe_read_user(w->code_bytes, sizeof(w->code_bytes), (void *)code) || w->code_bytes[1] != w->p.code_type)
		return;
	instruction = w->p.bytecode ? instruction - code - w->p.bytecode : instruction & 0xffffffff;
	line = code_field(w, w->p.first_line) >> ((w->p.first_line & 4) * 8) & 0xffffffff;
	mixed = code_field(w, w->p.name) * 31 ^ code_field(w, w->p.lines) * 131;
	w->pending[w->n & GS_PENDING_MASK] = (__u64)GS_PYTHON << GS_WORD_SHIFT | (code & 0xffffffffffffULL);
	w->pending[(w->n + 1) & GS_PENDING_MASK] = instruction << 32 | ((mixed ^ mixed >> 32 ^ line) & 0xffffffff);
	w->n += 2;
}

/* The chain of C-stack records gives the marker of the activation whose frames come next. */
static __always_inline void follow_cframe(struct gs_python_walk *w)
{
	__u64 record[3] = {};

	w->marker = w->cframe;
	if (!w->cframe || bpf_probe_read_user(record, sizeof(record), (void *)w->cframe)) {
		w->cframe = 0;
		return;
	}
	w->cframe = w->p.cframe_previous == 8 ? record[1] : record[2];
}

static __always_inline void scan_done(struct gs_scratch *s)
{
	s->mode = s->failed ? MODE_EMIT : MODE_NATIVE;
}

/* One frame of the activation at hand. */
static __always_inline int scan_step(struct gs_scratch *s)
{
	struct gs_python_walk *w = &s->python;
	__u64 frame = w->frame;
	__u8 owner;

	if (!frame || w->n > GS_MAX_USER_WORDS - 2 || bpf_probe_read_user(w->frame_bytes, sizeof(w->frame_bytes), (void *)frame)) {
		w->frame = 0;
		scan_done(s);
		return GO_ON;
	}
	w->frame = frame_field(w, w->p.previous);
	owner = frame_field(w, w->p.owner) >> ((w->p.owner & 7) * 8);
	if (w->p.style >= GS_PYTHON_OWNER_CFRAME && owner == GS_OWNER_C_STACK) {
		w->marker = frame;
		scan_done(s);
		return GO_ON;
	}
	keep_frame(w);
	if (w->p.style <= GS_PYTHON_CFRAME || (w->p.style == GS_PYTHON_ENTRY && owner)) {
		if (w->p.style != GS_PYTHON_PC_RANGE)
			follow_cframe(w);
		scan_done(s);
	}
	return GO_ON;
}

static __always_inline int emit_step(struct gs_scratch *s)
{
	struct gs_python_walk *w = &s->python;

	for (int i = 0; i < GS_EMIT_AT_ONCE; i++) {
		if (w->at >= w->n)
			break;
		push(s, w->pending[w->at & GS_PENDING_MASK]);
		push(s, w->pending[(w->at + 1) & GS_PENDING_MASK]);
		w->at += 2;
		s->frames++;
	}
	if (w->at < w->n)
		return GO_ON;
	w->at = 0;
	w->n = 0;
	w->marker = 0;
	if (w->frame)
		s->mode = MODE_SCAN;
	else if (s->failed)
		return STOP;
	else
		s->mode = MODE_NATIVE;
	return GO_ON;
}

/* Whether the native frame just left, [s->low, s->sp) on the stack, at `address`, is the activation whose frames are pending. */
static __always_inline bool is_activation(const struct gs_scratch *s, __u64 address)
{
	const struct gs_python_walk *w = &s->python;

	if (!w->n)
		return false;
	if (w->p.style == GS_PYTHON_PC_RANGE)
		return address >= w->p.eval_start && address < w->p.eval_end;
	return w->marker >= s->low && w->marker < s->sp;
}

/* An activation that holds no code object of ours (a shim alone) is passed without frames. */
static __always_inline void pass_empty_activation(struct gs_scratch *s)
{
	struct gs_python_walk *w = &s->python;

	if (!w->n && w->frame && w->marker >= s->low && w->marker < s->sp)
		s->mode = MODE_SCAN;
}

static __always_inline void start_python(struct gs_scratch *s, __u64 task)
{
	struct gs_python *p = bpf_map_lookup_elem(&pythons, &s->sample.tgid);
	struct gs_python_walk *w = &s->python;
	__u64 base, thread_state = 0, state = 0, identity = 0;

	w->n = 0;
	w->at = 0;
	w->frame = 0;
	w->marker = 0;
	w->cframe = 0;
	if (!p || p->start_boottime != s->sample.start_boottime)
		return;
	w->p = *p;
	base = THREAD_POINTER(task);
	if (bpf_probe_read_user(&thread_state, sizeof(thread_state), (void *)(base + p->slot)) || !thread_state ||
	    bpf_probe_read_user(&identity, sizeof(identity), (void *)(thread_state + p->thread_id)) || identity != base)
		return; /* a thread that never ran Python, or the interpreter is going down */
	bpf_probe_read_user(&state, sizeof(state), (void *)(thread_state + p->current));
	if (p->style == GS_PYTHON_ENTRY || p->style == GS_PYTHON_OWNER_CFRAME) {
		w->cframe = state;
		bpf_probe_read_user(&w->frame, sizeof(w->frame), (void *)(state + p->cframe_frame));
	} else {
		w->frame = state;
		if (p->cframe)
			bpf_probe_read_user(&w->cframe, sizeof(w->cframe), (void *)(thread_state + p->cframe));
	}
	if (w->frame)
		s->mode = MODE_SCAN;
}

#endif
