/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int gs_fail(struct gs_error *error, enum gs_fault fault, int number, const char *format, ...)
{
	va_list arguments;

	error->fault = fault;
	error->number = number;
	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return -1;
}
