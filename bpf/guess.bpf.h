/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Code without unwind rows: JIT code that registered none, PLT stubs, assembly, stripped Go. Its caller is found, in this order, by
 *   1. of an interrupted function, the word at the stack pointer, or the one above a frame pointer that was just pushed: the
 *      function has not built its frame yet, or never builds one;
 *   2. the frame pointer;
 *   3. a scan of the stack, whose frames are marked as guessed.
 * Each counts only if it is a return address: in an executable mapping and right behind a call instruction. */
#ifndef GPUSTROBE_GUESS_BPF_H
#define GPUSTROBE_GUESS_BPF_H

#define GS_SCAN_AT_ONCE 8
#define GS_SCAN_ROUNDS 16 /* 128 words: the frames of numba's and XLA's functions without rows are smaller */
#define GS_SAVED 4
#define GS_GUESSES_AT_ONCE 3
#define GS_MAX_GUESSES 6 /* runs of frames without rows in one stack, two tail calls each */

static __always_inline bool is_user_address(__u64 address)
{
	return address >= 0x10000 && !(address >> 47);
}

/* Whether the instruction before `address` is a call, by its last seven bytes: E8 rel32, or FF /2 in its forms of 2 to 7 bytes
 * (a REX prefix before them changes nothing). 0 = no; 1 = indirect; 2 = direct, and *target. */
static __always_inline int call_before(__u64 address, __u64 *target)
{
	__u8 b[8] = {};

	if (bpf_probe_read_user(b, sizeof(b), (void *)(address - 8)))
		return 0;
	if (b[3] == 0xe8) {
		*target = address + (__s64)(__s32)(b[4] | b[5] << 8 | b[6] << 16 | (__u32)b[7] << 24);
		return 2;
	}
	if ((b[6] == 0xff && ((b[7] & 0xf8) == 0xd0 || ((b[7] & 0xf8) == 0x10 && (b[7] & 7) != 4 && (b[7] & 7) != 5))) || /* r, [r] */
	    (b[5] == 0xff && ((b[6] & 0xf8) == 0x50 || b[6] == 0x14)) ||          /* [r+8], [sib] */
	    (b[4] == 0xff && b[5] == 0x54) ||                                     /* [sib+8] */
	    (b[2] == 0xff && ((b[3] & 0xf8) == 0x90 || b[3] == 0x15)) ||          /* [r+32], [rip+32] */
	    (b[1] == 0xff && (b[2] == 0x94 || b[2] == 0x14)))                     /* [sib+32], [32] */
		return 1;
	return 0;
}

/* What makes an address count: where it lies; a call before it; that call's target, where the instruction tells it, at or before the
 * callee's own address; and that within a page. */
enum { PROOF_MAPPED, PROOF_CALL, PROOF_TARGET, PROOF_NEAR };

/* A direct call goes to where the callee begins. The stack of a function that keeps its locals
 * there is full of return addresses of calls that are over, nearly all of them direct calls between functions of one library.
 * A global function, so that the verifier walks it once and not for each word of the stack. */
__noinline int return_address(__u64 address, __u32 proof)
{
	__u32 zero = 0;
	struct gs_scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	__u64 target = 0;
	int call;

	if (!s)
		return 0;
	if ((address - 1 < s->map_start || address - 1 >= s->map_end) && !find_mapping(s, address - 1))
		return 0;
	if (proof == PROOF_MAPPED)
		return 1;
	call = call_before(address, &target);
	if (proof == PROOF_CALL || call == 0)
		return call;
	if (call == 2)
		return target >= s->callee[0] && target < s->callee[1] && (proof != PROOF_NEAR || s->callee[1] - target <= 4096);
	return proof == PROOF_TARGET;
}

static __always_inline bool is_return(__u64 address, __u32 proof)
{
	return is_user_address(address) && return_address(address, proof);
}

static __always_inline int go_to(struct gs_scratch *s, __u64 at, __u64 address, __u64 fp)
{
	s->low = s->sp;
	s->sp = at + 8;
	s->fp = fp;
	s->pc = address;
	s->is_return = 1;
	return GO_ON;
}

/* Frames that nobody called, but a frame pointer vouches for: the thread's first, which a saved 0 marks (System V ABI: Go's
 * runtime.goexit), and those of an interpreter made at run time, which pushes return addresses itself (HotSpot): the chain goes on
 * up the stack from them. After find_mapping. */
static __always_inline bool frame_follows(const struct gs_scratch *s, __u64 fp, __u64 next)
{
	return !next || (!s->map_file && next > fp && next - fp < 1 << 20 && !(next & 7));
}

/* The frame pointer's frame, if what it says is a return address. */
static __always_inline bool step_by_fp(struct gs_scratch *s)
{
	__u64 frame[2], target;

	if (s->fp < s->sp || (s->fp & 7) || bpf_probe_read_user(frame, sizeof(frame), (void *)s->fp) ||
	    !is_return(frame[1], PROOF_MAPPED) || !(frame_follows(s, s->fp, frame[0]) || call_before(frame[1], &target)))
		return false;
	go_to(s, s->fp + 8, frame[1], frame[0]);
	s->by_fp = 1;
	return true;
}

/* Code of a JIT keeps whatever it likes at its stack pointer, so first only a call of the very function counts. */
static __always_inline bool step_from_leaf(struct gs_scratch *s, __u32 proof)
{
	__u64 top[2];

	if (bpf_probe_read_user(top, sizeof(top), (void *)s->sp))
		return false;
	if (top[0] == s->fp && is_return(top[1], proof))
		go_to(s, s->sp + 8, top[1], s->fp);
	else if (is_return(top[0], proof))
		go_to(s, s->sp, top[0], s->fp);
	else
		return false;
	return true;
}

/* rbp of the caller of code that kept none of it in sight: as it is if it points up the stack from there, else what lies below
 * the return address if that does. */
static __always_inline __u64 likely_fp(const struct gs_scratch *s, __u64 at, __u64 below)
{
	if (s->fp > at && s->fp - at < 1 << 20)
		return s->fp;
	return below > at && below - at < 1 << 20 ? below : s->fp;
}

/* A word that points up the stack, past what is scanned: a stack pointer saved by code that made room of its own. */
static __always_inline void keep_saved(struct gs_scratch *s, __u64 word)
{
	if ((word & 7) || word - s->sp < GS_SCAN_ROUNDS * GS_SCAN_AT_ONCE * 8 || word - s->sp >= 1 << 20 || s->n_saved >= GS_SAVED)
		return;
	s->saved[s->n_saved & (GS_SAVED - 1)] = word;
	s->n_saved++;
}

/* A piece of the stack: true if it holds a return address. */
static __always_inline bool scan_piece(struct gs_scratch *s, __u64 at)
{
	__u64 words[GS_SCAN_AT_ONCE], below = 0;

	if (bpf_probe_read_user(words, sizeof(words), (void *)at))
		return false;
	for (int i = 0; i < GS_SCAN_AT_ONCE; i++) {
		if (is_return(words[i], PROOF_TARGET)) {
			go_to(s, at + i * 8, words[i], likely_fp(s, at + i * 8, below));
			s->guessed = 1;
			return true;
		}
		below = words[i];
		keep_saved(s, below);
	}
	return false;
}

static __always_inline void collect_saved(struct gs_scratch *s, __u64 at)
{
	__u64 words[GS_SCAN_AT_ONCE];

	if (bpf_probe_read_user(words, sizeof(words), (void *)at))
		return;
	for (int i = 0; i < GS_SCAN_AT_ONCE; i++)
		keep_saved(s, words[i]);
}

static __always_inline bool chase_saved(struct gs_scratch *s)
{
	for (__u32 i = 0; i < GS_SAVED * 2; i++)
		if ((i >> 1) < s->n_saved && scan_piece(s, s->saved[i >> 1 & (GS_SAVED - 1)] + (i & 1) * GS_SCAN_AT_ONCE * 8))
			return true;
	return false;
}

/* oneDNN's matrix kernels (XLA) take 12 KB and more of the stack, aligned to a page, and keep the old stack pointer 15 words up.
 * What lies in that room is rubbish of earlier calls, return addresses among it. */
static __always_inline bool step_from_aligned(struct gs_scratch *s)
{
	if (s->sp & 4095)
		return false;
	collect_saved(s, s->sp);
	collect_saved(s, s->sp + GS_SCAN_AT_ONCE * 8);
	return chase_saved(s);
}

/* Moves to the caller of s->pc, which no row covers; false if none is found. */
static __always_inline bool guess_caller(struct gs_scratch *s)
{
	__u64 at = s->sp;

	s->n_saved = 0;

	bool found = find_mapping(s, s->pc - s->is_return);

	s->callee[0] = found ? s->map_start : 0;
	s->callee[1] = found ? s->pc - s->is_return + 1 : 0;
	if (!s->is_return && (step_from_leaf(s, PROOF_NEAR) || step_by_fp(s) || step_from_leaf(s, PROOF_TARGET)))
		return true;
	if (step_from_aligned(s))
		return true;
	s->n_saved = 0;
	for (int i = 0; i < GS_SCAN_ROUNDS; i++)
		if (scan_piece(s, at + i * GS_SCAN_AT_ONCE * 8))
			return true;
	return chase_saved(s);
}

/* Names the guessed frame if it has no rows either, so that the next can be guessed without going back to the walk. */
static __always_inline bool name_guessed(struct gs_scratch *s)
{
	__u64 address = s->pc - s->is_return, kind = s->guessed ? GS_RAW_GUESSED : GS_RAW;

	if (s->python.n || s->frames >= GS_MAX_FRAMES || !find_mapping(s, address) || s->map_table || s->map_file)
		return false;
	push(s, kind << GS_WORD_SHIFT | address);
	s->frames++;
	s->guessed = 0;
	return true;
}

/* Up to three frames of code without rows. False if there is no way on. */
static __always_inline bool guess_run(struct gs_scratch *s, struct gs_cpu_counters *c)
{
	for (int i = 0; i < GS_GUESSES_AT_ONCE; i++) {
		if (!(i && step_by_fp(s)) && !guess_caller(s))
			return false;
		c->guessed += s->guessed;
		if (i + 1 == GS_GUESSES_AT_ONCE || !name_guessed(s))
			break;
	}
	return true;
}

#endif
