/* SPDX-License-Identifier: Apache-2.0 */
#include "codes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "epoch.h"
#include "python_lines.h"

#define MAX_RECORDS (64u << 20) /* bytes waiting to be taken */
#define MAX_LINES (32u << 20)   /* bytes of line tables in an epoch; past it frames have no line */
#define MAX_PLACES (1u << 18)

static int same_key(const void *table, uint32_t id, const void *wanted)
{
	return !memcmp(&((const struct gs_codes *)table)->keys[id], wanted, sizeof(struct gs_code_key));
}

static void append(struct gs_codes *c, uint32_t process_id)
{
	const struct gs_python_code *code = &c->scratch;
	struct gs_code_record head = { process_id,
				       (uint32_t)offsetof(struct gs_python_code, text) + code->name_length + code->file_length };
	uint64_t need = ((uint64_t)c->length + sizeof(head) + head.length + 7) & ~7ULL;

	if (gs_grow((void **)&c->records, &c->room, need, MAX_RECORDS, 1))
		return; /* its frames will say that the code object could not be read */
	memcpy(c->records + c->length, &head, sizeof(head));
	memcpy(c->records + c->length + sizeof(head), code, head.length);
	c->length = (uint32_t)need;
}

static void keep_lines(struct gs_codes *c, struct gs_code_lines *table)
{
	const struct gs_python_code *code = &c->scratch;

	if (code->state != GS_CODE_READ ||
	    gs_grow((void **)&c->lines, &c->room_lines, (uint64_t)c->lines_length + code->lines_length, MAX_LINES, 1))
		return;
	*table = (struct gs_code_lines){ code->first_line, c->lines_length, code->lines_length, code->version, 0 };
	memcpy(c->lines + c->lines_length, code->text + code->name_length + code->file_length, code->lines_length);
	c->lines_length += code->lines_length;
}

/* Number of the code object, read and handed on the first time; GS_NO_ID without memory. */
static uint32_t see(struct gs_codes *c, uint32_t process_id, uint32_t tgid, const struct gs_python *p, uint64_t code, uint32_t check)
{
	struct gs_code_key key = { code, process_id, check };
	uint32_t hash = (uint32_t)gs_mix(gs_mix(gs_mix(3, process_id), code), check);
	uint32_t id = gs_index_find(&c->index, hash, same_key, c, &key);

	if (id != GS_NO_ID)
		return id;
	if (gs_grow((void **)&c->keys, &c->room_keys, c->n_keys + 1ULL, UINT32_MAX, sizeof(key)) ||
	    gs_grow((void **)&c->tables, &c->room_tables, c->n_keys + 1ULL, UINT32_MAX, sizeof(*c->tables)) ||
	    gs_index_reserve(&c->index))
		return GS_NO_ID;
	id = c->n_keys++;
	c->keys[id] = key;
	memset(&c->tables[id], 0, sizeof(c->tables[id]));
	gs_index_add(&c->index, hash, id);
	if (p) {
		gs_python_read_code(tgid, p, code, check, &c->scratch);
		keep_lines(c, &c->tables[id]);
		append(c, process_id);
	}
	return id;
}

uint32_t gs_codes_line(struct gs_codes *c, uint32_t process_id, uint32_t tgid, const struct gs_python *p, uint64_t code,
		       uint64_t detail)
{
	uint32_t id = see(c, process_id, tgid, p, code, (uint32_t)detail);
	const struct gs_code_lines *t = id == GS_NO_ID ? NULL : &c->tables[id];

	if (!t || !t->length)
		return 0;
	return gs_python_line(t->version, t->first_line, c->lines + t->start, t->length, (uint32_t)(detail >> 32));
}

static uint32_t place_hash(uint32_t process_id, uint64_t code, uint64_t detail)
{
	return (uint32_t)gs_mix(gs_mix(gs_mix(4, process_id), code), detail);
}

static int same_place(const void *table, uint32_t id, const void *wanted)
{
	const struct gs_code_place *have = &((const struct gs_codes *)table)->places[id], *want = wanted;

	return have->code == want->code && have->detail == want->detail && have->process_id == want->process_id;
}

uint32_t gs_codes_frame(const struct gs_codes *c, uint32_t process_id, uint64_t code, uint64_t detail)
{
	struct gs_code_place wanted = { code, detail, process_id, 0 };
	uint32_t id = gs_index_find(&c->place_index, place_hash(process_id, code, detail), same_place, c, &wanted);

	return id == GS_NO_ID ? GS_NO_ID : c->places[id].frame;
}

void gs_codes_remember(struct gs_codes *c, uint32_t process_id, uint64_t code, uint64_t detail, uint32_t frame)
{
	if (gs_grow((void **)&c->places, &c->room_places, c->n_places + 1ULL, MAX_PLACES, sizeof(*c->places)) ||
	    gs_index_reserve(&c->place_index))
		return; /* found again the long way */
	c->places[c->n_places] = (struct gs_code_place){ code, detail, process_id, frame };
	gs_index_add(&c->place_index, place_hash(process_id, code, detail), c->n_places++);
}

uint64_t gs_codes_bytes(const struct gs_codes *c)
{
	return (uint64_t)c->room + c->room_lines + c->room_keys * sizeof(*c->keys) + c->room_tables * sizeof(*c->tables) +
	       c->room_places * sizeof(*c->places) + ((uint64_t)c->index.size + c->place_index.size) * sizeof(struct gs_index_slot);
}

void gs_codes_free(struct gs_codes *c)
{
	free(c->keys);
	free(c->tables);
	free(c->lines);
	free(c->places);
	free(c->records);
	gs_index_free(&c->index);
	gs_index_free(&c->place_index);
}
