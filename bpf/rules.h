/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Unwind rules and tables as user side writes and kernel side reads them.
 *
 * A row is a u32: the low 16 bits of its file offset, and the number of a rule above them. Rows of a file are sorted by
 * file offset; an index holds, for each 512 bytes of text, the first row at or after it, so that 16 bits are never
 * ambiguous and a lookup is one index word and a search among the few rows of one page. */
#ifndef GPUSTROBE_RULES_H
#define GPUSTROBE_RULES_H

#define GS_PAGE_SHIFT 9
#define GS_ROW_RULE_SHIFT 16

/* How the canonical frame address comes about. */
enum gs_cfa {
	GS_CFA_NONE,     /* not covered by any table */
	GS_CFA_SP,       /* rsp + cfa_offset */
	GS_CFA_BP,       /* rbp + cfa_offset */
	GS_CFA_SP_DEREF, /* *(rsp + GS_HIGH(cfa_offset)) + GS_LOW(cfa_offset): OpenSSL's assembly */
	GS_CFA_BP_DEREF, /* *(rbp + GS_HIGH) + GS_LOW: functions that realign their stack (DRAP) */
	GS_CFA_LEAF,     /* register GS_LOW + GS_HIGH, whose value only the interrupted function itself still has */
	GS_CFA_PLT,      /* rsp + 8, + 8 more once (rip & 15) >= cfa_offset */
	GS_CFA_SIGNAL,   /* the kernel's signal frame: all registers lie in a ucontext at rsp */
	GS_CFA_STOP,     /* return address undefined: the thread's first frame */
	GS_CFA_BAD,      /* a rule we cannot express */
};
#define GS_LOW(offset) ((offset) & 0xff)
#define GS_HIGH(offset) ((offset) >> 8)

/* How the caller's rbp is found. */
enum gs_bp {
	GS_BP_SAME,    /* unchanged */
	GS_BP_CFA,     /* *(cfa + bp_offset) */
	GS_BP_BP,      /* *(rbp + bp_offset) */
	GS_BP_SP,      /* *(rsp + bp_offset) */
	GS_BP_UNKNOWN, /* lost */
};

struct gs_rule {
	__s32 cfa_offset;
	__s16 bp_offset;
	__u8 cfa; /* enum gs_cfa */
	__u8 bp;  /* enum gs_bp */
};

/* One file's table inside the shared array of words. */
#define GS_NO_ROWS 0xffffffffU /* gs_table.rows of a file that was read and has none */
#define GS_TABLE_NUMBER(table) ((table) & 0xffff)
#define GS_TABLE_GENERATION(table) ((table) >> 16)
struct gs_table {
	__u64 base;  /* file offset of the first page, a multiple of 512 */
	__u32 pages; /* index has pages + 1 words; 0 = no table */
	__u32 index; /* word number of the index */
	__u32 rows;  /* word number of row 0; GS_NO_ROWS */
	__u32 generation; /* of the number: gs_mapping.table is generation << 16 | number, so a stale row finds no table */
};

#endif
