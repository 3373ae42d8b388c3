/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The stack of a process that has no table yet goes along with the sample: a compiler lives for a few samples, and each would have
 * a first one cut short. About 1 us, once or twice in a process's life. */
#ifndef GPUSTROBE_COPY_BPF_H
#define GPUSTROBE_COPY_BPF_H

/* Copies must not push samples out: they stop while the ring is half full. */
static __always_inline bool ring_has_room(void)
{
	return bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) < bpf_ringbuf_query(&samples, BPF_RB_RING_SIZE) / 2;
}

static __always_inline void copy_user_stack(struct gs_scratch *s)
{
	__u32 at;

	s->sample.flags |= GS_SAMPLE_STACK;
	push(s, s->leaf);
	for (int i = 0; i < 16; i++)
		push(s, s->registers[i]);
	at = s->n;
	push(s, 0);
	for (int i = 0; i < GS_STACK_WORDS / GS_STACK_PIECE; i++) {
		if (bpf_probe_read_user(&s->words[s->n & GS_WORD_MASK], GS_STACK_PIECE * 8,
					(void *)(s->registers[7] + i * GS_STACK_PIECE * 8)))
			break;
		s->n += GS_STACK_PIECE;
	}
	s->words[at & GS_WORD_MASK] = s->n - at - 1;
}

#endif
