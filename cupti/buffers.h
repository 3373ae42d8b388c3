/* SPDX-License-Identifier: Apache-2.0 */
/* Activity buffers on the host: 64 at most, allocated ahead by our thread. CUPTI takes and gives them back from any thread,
 * under locks of its own: those calls do not wait, allocate, or call CUPTI. A buffer that CUPTI has is never freed by us. Each
 * is a block of malloc's: if another profiler registers its callbacks while CUPTI has one of ours, CUPTI gives it to that one,
 * which will free() it. */
#ifndef GPUSTROBE_BUFFERS_H
#define GPUSTROBE_BUFFERS_H

#include <stddef.h>
#include <stdint.h>

#define GS_BUFFER_SIZE (1u << 20) /* some 4 700 kernel records */
#define GS_MOST_BUFFERS 64

/* How many there may be (0 = 64), and the first few of them; 0 or -1. Our thread. */
int gs_buffers_create(unsigned most);

/* Sees to it that some are free; to be called now and then. Our thread. */
void gs_buffers_refill(void);

/* For CUPTI: never NULL (that crashes before 12.9). With none left, a buffer that everybody shares and nobody reads. */
void gs_buffer_request(uint8_t **buffer, size_t *size, size_t *most_records);
void gs_buffer_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* A buffer that CUPTI gave back: its number, or -1. Its valid bytes; what is read must be given back by gs_buffer_done. */
int gs_buffer_full(uint8_t **buffer, size_t *valid);
void gs_buffer_done(int number);

/* Another profiler is here: those that CUPTI has may be freed by it, and are ours no more. */
void gs_buffers_forget_lent(void);

/* Buffers taken by CUPTI when none was left, since the start; buffers that exist now. */
uint64_t gs_buffers_missed(void);
unsigned gs_buffers_count(void);

/* Frees those that CUPTI does not have. */
void gs_buffers_release(void);

#endif
