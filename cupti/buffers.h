/* SPDX-License-Identifier: Apache-2.0 */
/* Activity buffers on the host: 64 at most, mapped once and for the process's life, touched as they are used. CUPTI takes and
 * gives them back from any thread, under locks of its own: these calls do not wait, allocate, or call CUPTI. */
#ifndef GPUSTROBE_BUFFERS_H
#define GPUSTROBE_BUFFERS_H

#include <stddef.h>
#include <stdint.h>

#define GS_BUFFER_SIZE (1u << 20) /* some 4 700 kernel records */
#define GS_MOST_BUFFERS 64

/* Maps the buffers; 0 or -1. `most` bounds how many are given out. */
int gs_buffers_create(unsigned most);

/* For CUPTI: never NULL (that crashes before 12.9). With none left, a buffer that everybody shares and nobody reads. */
void gs_buffer_request(uint8_t **buffer, size_t *size, size_t *most_records);
void gs_buffer_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* A buffer that CUPTI gave back: its number, or -1. Its valid bytes; what is read must be given back by gs_buffer_done. */
int gs_buffer_full(uint8_t **buffer, size_t *valid);
void gs_buffer_done(int number);

/* Buffers taken by CUPTI when none was left, since the start; buffers free now. */
uint64_t gs_buffers_missed(void);
unsigned gs_buffers_free(void);

/* Gives the memory of free buffers back to the kernel. */
void gs_buffers_release(void);

#endif
