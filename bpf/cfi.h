/* SPDX-License-Identifier: Apache-2.0 */
/* DWARF call frame information (.eh_frame, .debug_frame) of x86-64, reduced to gs_rule. Sources: DWARF 5 section 6.4,
 * LSB 5 "Exception Frames" and the System V x86-64 ABI's register numbers (6 rbp, 7 rsp, 16 return address). */
#ifndef GPUSTROBE_CFI_H
#define GPUSTROBE_CFI_H

#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>

#include "rules.h"

struct gs_cfi_section {
	const uint8_t *data;
	size_t size;
	uint64_t vaddr; /* of data[0], for pc-relative pointers */
	int debug_frame; /* .debug_frame: other CIE marks and absolute CIE offsets */
};

struct gs_cfi_sink {
	void *to;
	/* A function [start, start + size) begins; 0 = not wanted, skip it. */
	int (*function)(void *to, uint64_t start, uint64_t size);
	/* From `delta` bytes into that function on, this rule holds. 0 = no more room, stop. */
	int (*row)(void *to, uint64_t delta, struct gs_rule rule);
};

struct gs_cfi_counts {
	uint64_t functions;
	uint64_t unsupported; /* CIEs or FDEs with an augmentation, version or encoding we do not know */
	uint64_t bad_rules;   /* rows whose rule cannot be expressed */
};

/* Walks all FDEs. Returns 1, or 0 if the section breaks off: what was delivered before stands. */
int gs_cfi_walk(const struct gs_cfi_section *section, const struct gs_cfi_sink *sink, struct gs_cfi_counts *counts);

#endif
