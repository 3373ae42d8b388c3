/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the kernel side must know of a process's CPython to walk its frames; written by bpf/python_runtime.c. Offsets in bytes.
 *
 * Which frames belong to which native frame: the eval loop keeps a record of itself on the C stack, and a native frame is an
 * activation of the loop iff that record ("marker") lies between its stack pointer and its CFA. */
#ifndef GPUSTROBE_PYTHON_H
#define GPUSTROBE_PYTHON_H

enum gs_python_style {
	GS_PYTHON_PC_RANGE = 1, /* 3.9: tstate->frame, one frame an activation, known by the loop's addresses */
	GS_PYTHON_CFRAME,       /* 3.10: tstate->frame, one frame an activation; marker: the CFrame chain */
	GS_PYTHON_ENTRY,        /* 3.11: cframe->current_frame; a frame with is_entry ends an activation; marker: the cframe chain */
	GS_PYTHON_OWNER_CFRAME, /* 3.12: cframe->current_frame; marker: the frame whose owner is 3, itself on the C stack */
	GS_PYTHON_OWNER,        /* 3.13 on: tstate->current_frame; marker as in 3.12 */
};

struct gs_python {
	__u64 start_boottime;
	__u64 code_type;            /* address of PyCode_Type: anything else is no code object */
	__u64 eval_start, eval_end; /* PC_RANGE only */
	__u32 slot;                 /* from the thread's fs base: where pthreads keep the interpreter's thread state */
	__u32 style;                /* enum gs_python_style */
	__u16 thread_id;            /* PyThreadState.thread_id, equal to fs base in the thread's own state */
	__u16 current;              /* PyThreadState.frame, .cframe or .current_frame */
	__u16 cframe;               /* PyThreadState.cframe in 3.10, else 0 */
	__u16 cframe_frame;         /* _PyCFrame.current_frame */
	__u16 cframe_previous;      /* _PyCFrame.previous */
	__u16 code, previous, instruction, owner; /* of a frame; owner is is_entry in 3.11 */
	__u16 first_line, name, lines;            /* of a code object: co_firstlineno, co_qualname (co_name), co_linetable (co_lnotab) */
	__u16 bytecode;             /* co_code_adaptive; 0: `instruction` is an index, not an address */
	__u16 version;              /* 0x30b for 3.11 */
	__u16 pad[2];
};

#endif
