/* SPDX-License-Identifier: Apache-2.0 */
/* Line of an instruction from a CPython code object's line table, 3.9 to 3.14; formats: CPython's Objects/lnotab_notes.txt and,
 * from 3.11 on, InternalDocs/code_objects.md. tests/python_lines.py is the slow twin under the same tests. */
#ifndef GPUSTROBE_PYTHON_LINES_H
#define GPUSTROBE_PYTHON_LINES_H

#include <stdint.h>

#include "core.h"

/* `instruction` as the interpreter keeps it: bytes of bytecode in 3.9 and from 3.11 on, code units of two bytes in 3.10;
 * 2^31 and above (f_lasti of -1): not started yet. version 0x30b is 3.11. 0: the table gives no line there, or is broken. */
GS_API uint32_t gs_python_line(uint16_t version, uint32_t first_line, const uint8_t *table, uint32_t length, uint32_t instruction);

#endif
