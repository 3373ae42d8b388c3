/* SPDX-License-Identifier: Apache-2.0 */
#include "codes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "epoch.h"

#define MAX_RECORDS (64u << 20) /* bytes waiting to be taken */

static int same_key(const void *table, uint32_t id, const void *wanted)
{
	return !memcmp(&((const struct gs_codes *)table)->keys[id], wanted, sizeof(struct gs_code_key));
}

static void append(struct gs_codes *c, uint32_t process_id)
{
	const struct gs_python_code *code = &c->scratch;
	struct gs_code_record head = { process_id, (uint32_t)offsetof(struct gs_python_code, text) + code->name_length +
							   code->file_length + code->lines_length };
	uint64_t need = ((uint64_t)c->length + sizeof(head) + head.length + 7) & ~7ULL;

	if (gs_grow((void **)&c->records, &c->room, need, MAX_RECORDS, 1))
		return; /* its frames will say that the code object could not be read */
	memcpy(c->records + c->length, &head, sizeof(head));
	memcpy(c->records + c->length + sizeof(head), code, head.length);
	c->length = (uint32_t)need;
}

void gs_codes_see(struct gs_codes *c, uint32_t process_id, uint32_t tgid, const struct gs_python *p, uint64_t code, uint32_t check)
{
	struct gs_code_key key = { code, process_id, check };
	uint32_t hash = (uint32_t)gs_mix(gs_mix(gs_mix(3, process_id), code), check);

	if (gs_index_find(&c->index, hash, same_key, c, &key) != GS_NO_ID)
		return;
	if (gs_grow((void **)&c->keys, &c->room_keys, c->n_keys + 1ULL, UINT32_MAX, sizeof(key)) || gs_index_reserve(&c->index))
		return;
	c->keys[c->n_keys] = key;
	gs_index_add(&c->index, hash, c->n_keys++);
	if (!p)
		return;
	gs_python_read_code(tgid, p, code, check, &c->scratch);
	append(c, process_id);
}

void gs_codes_free(struct gs_codes *c)
{
	free(c->keys);
	free(c->records);
	gs_index_free(&c->index);
}
