/* SPDX-License-Identifier: Apache-2.0 */
#include "python_code.h"

#include <stddef.h>
#include <string.h>

/* CPython's str (PEP 393), the same in 3.9 to 3.14: length 16, state 32 (kind in bits 2-4, compact 5, ascii 6) bytes in. The
 * characters follow the struct: PyASCIIObject, or PyCompactUnicodeObject where they are not all ASCII; both lost fields in 3.12. */
#define STR_LENGTH 16
#define STR_STATE 32
#define STR_HEAD 72
#define BYTES_LENGTH 16
#define BYTES_DATA 32
#define FILE_FIELD(version) ((version) < 0x30b ? 104 : 112)

static size_t put_utf8(uint8_t *to, uint32_t c)
{
	if (c < 0x80) {
		to[0] = (uint8_t)c;
		return 1;
	}
	if (c < 0x800) {
		to[0] = (uint8_t)(0xc0 | c >> 6);
		to[1] = (uint8_t)(0x80 | (c & 63));
		return 2;
	}
	if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		c = 0xfffd; /* a lone surrogate stands for a byte of a file name that is no UTF-8 */
	if (c < 0x10000) {
		to[0] = (uint8_t)(0xe0 | c >> 12);
		to[1] = (uint8_t)(0x80 | (c >> 6 & 63));
		to[2] = (uint8_t)(0x80 | (c & 63));
		return 3;
	}
	to[0] = (uint8_t)(0xf0 | c >> 18);
	to[1] = (uint8_t)(0x80 | (c >> 12 & 63));
	to[2] = (uint8_t)(0x80 | (c >> 6 & 63));
	to[3] = (uint8_t)(0x80 | (c & 63));
	return 4;
}

/* UTF-8 of a str into at most `room` bytes; the number of bytes, or -1 if it is no str we can read. */
static int read_str(uint32_t pid, uint16_t version, uint64_t object, uint8_t *to, size_t room)
{
	uint8_t head[STR_HEAD], raw[4 * GS_PYTHON_NAME_MAX];
	uint64_t length;
	uint32_t state, width;
	size_t used = 0, count;

	if (!object || !gs_read_memory(pid, head, sizeof head, object))
		return -1;
	memcpy(&length, head + STR_LENGTH, sizeof length);
	memcpy(&state, head + STR_STATE, sizeof state);
	width = state >> 2 & 7;
	if (!(state & 32) || (width != 1 && width != 2 && width != 4) || length > 1 << 20)
		return -1;
	object += state & 64 ? (version < 0x30c ? 48 : 40) : (version < 0x30c ? 72 : 56);
	count = length < room ? length : room;
	if (!gs_read_memory(pid, raw, count * width, object))
		return -1;
	for (size_t i = 0; i < count && used + 4 <= room; i++) {
		uint32_t c = 0;
		memcpy(&c, raw + i * width, width);
		used += put_utf8(to + used, c);
	}
	return (int)used;
}

static uint64_t field64(const uint8_t *code, uint16_t offset)
{
	uint64_t value = 0;

	if (offset <= 136)
		memcpy(&value, code + offset, sizeof value);
	return value;
}

static uint32_t read_lines(uint32_t pid, uint64_t object, uint8_t *to)
{
	uint64_t length = 0;

	if (!object || !gs_read_memory(pid, &length, sizeof length, object + BYTES_LENGTH) || length > GS_PYTHON_LINES_MAX ||
	    !gs_read_memory(pid, to, length, object + BYTES_DATA))
		return 0;
	return (uint32_t)length;
}

void gs_python_read_code(uint32_t pid, const struct gs_python *p, uint64_t code, uint32_t check, struct gs_python_code *out)
{
	uint8_t bytes[144];
	uint64_t name, lines, mixed;
	int n;

	memset(out, 0, offsetof(struct gs_python_code, text));
	out->code = code;
	out->check = check;
	out->version = p->version;
	out->state = GS_CODE_UNREADABLE;
	if (!gs_read_memory(pid, bytes, sizeof bytes, code))
		return;
	name = field64(bytes, p->name);
	lines = field64(bytes, p->lines);
	out->first_line = (uint32_t)(field64(bytes, p->first_line & ~7) >> (p->first_line & 4) * 8);
	mixed = name * 31 ^ lines * 131; /* as keep_frame() in python.bpf.h */
	out->state = GS_CODE_REPLACED;
	if ((uint32_t)(mixed ^ mixed >> 32 ^ out->first_line) != check)
		return;
	n = read_str(pid, p->version, name, out->text, GS_PYTHON_NAME_MAX);
	if (n < 0)
		return;
	out->name_length = (uint16_t)n;
	n = read_str(pid, p->version, field64(bytes, FILE_FIELD(p->version)), out->text + out->name_length, GS_PYTHON_NAME_MAX);
	if (n < 0)
		return;
	out->file_length = (uint16_t)n;
	out->lines_length = read_lines(pid, lines, out->text + out->name_length + out->file_length);
	out->state = GS_CODE_READ;
}
