/* SPDX-License-Identifier: Apache-2.0 */
#include "python_lines.h"

/* co_lnotab: pairs of unsigned address step, signed line step. */
static uint32_t by_lnotab(uint32_t line, const uint8_t *table, uint32_t length, uint64_t offset)
{
	uint64_t address = 0;

	for (uint32_t i = 0; i + 1 < length; i += 2) {
		address += table[i];
		if (address > offset)
			break;
		line += (uint32_t)(int8_t)table[i + 1];
	}
	return line;
}

/* co_linetable of 3.10: the same pairs, but a line step comes with the range it starts; -128 = no line. */
static uint32_t by_pairs(uint32_t line, const uint8_t *table, uint32_t length, uint64_t offset)
{
	uint64_t address = 0;

	for (uint32_t i = 0; i + 1 < length; i += 2) {
		int step = (int8_t)table[i + 1];

		if (step != -128)
			line += (uint32_t)step;
		address += table[i];
		if (address > offset)
			return step == -128 ? 0 : line;
	}
	return 0;
}

/* Six bits a byte, lowest first, bit 6 on all but the last. */
static uint64_t varint(const uint8_t *table, uint32_t length, uint32_t *at)
{
	uint64_t value = 0;

	for (unsigned shift = 0; *at < length; shift += 6) {
		uint8_t byte = table[(*at)++];

		if (shift < 64)
			value |= (uint64_t)(byte & 63) << shift;
		if (!(byte & 64))
			break;
	}
	return value;
}

/* Entries of 3.11 on: a first byte 1 | code (4 bits) | length - 1 (3 bits, code units), then varints by code. */
static uint32_t by_locations(uint32_t line, const uint8_t *table, uint32_t length, uint64_t offset)
{
	uint64_t address = 0;

	for (uint32_t at = 0; at < length;) {
		unsigned code = table[at] >> 3 & 15;

		address += ((table[at++] & 7) + 1u) * 2;
		if (code == 13 || code == 14) { /* no columns, or all of them: a signed line step first */
			uint64_t step = varint(table, length, &at);

			line += (uint32_t)(step & 1 ? -(step >> 1) : step >> 1);
		} else if (code >= 10 && code <= 12) {
			line += code - 10;
		}
		if (address > offset)
			return code == 15 ? 0 : line;
		while (at < length && !(table[at] & 128)) /* first bytes alone have bit 7 */
			at++;
	}
	return 0;
}

uint32_t gs_python_line(uint16_t version, uint32_t first_line, const uint8_t *table, uint32_t length, uint32_t instruction)
{
	if (instruction >= 1u << 31)
		return first_line;
	if (version < 0x30a)
		return by_lnotab(first_line, table, length, instruction);
	if (version < 0x30b)
		return by_pairs(first_line, table, length, instruction * 2ULL);
	return by_locations(first_line, table, length, instruction);
}
