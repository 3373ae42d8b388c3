/* SPDX-License-Identifier: Apache-2.0 */
/* From CUPTI's activity records to the ring's. */
#ifndef GPUSTROBE_ACTIVITY_H
#define GPUSTROBE_ACTIVITY_H

#include "abi.h"
#include "names.h"
#include "windows.h"

#define GS_MOST_CONTEXTS 64

struct gs_reader {
	struct gs_ring *ring;
	struct gs_names *names;
	const struct gs_windows *windows;
	int (*next_record)(uint8_t *buffer, size_t valid, void **record);
	uint32_t version;      /* cuptiGetVersion */
	uint8_t graph_ids_lie; /* GRAPH_TRACE records carry wrong correlation ids by now */
	uint64_t latest;       /* cupti: ends after this are in the future */
	int64_t cupti_minus_mono;
	uint64_t times, zero_times; /* records with a time, those of them that had none: since the start */
	struct {
		uint32_t context, device;
	} contexts[GS_MOST_CONTEXTS]; /* announced ones */
	uint32_t n_contexts;
};

/* Reads one buffer that CUPTI gave back. */
void gs_read_buffer(struct gs_reader *reader, uint8_t *buffer, size_t valid);

#endif
