/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

#include <string.h>

#define S 1000000000ull

static const struct gs_policy table[] = {
	/* from    mode               window    period finalize graph ids */
	{0,      GS_MODE_OFF,       0,        0,      0, 0}, /* 11.x: promise nothing */
	{18,     GS_MODE_ON_DEMAND, 0,        0,      0, 0}, /* 12.0-12.5: Finalize crashes with CUDA graphs */
	{24,     GS_MODE_SESSIONS,  2 * S,    60 * S, 1, 0}, /* 12.6-13.0: Disable(CONCURRENT_KERNEL) could deadlock; toggle rarely */
	{130001, GS_MODE_WINDOWS,   S / 10,   S,      1, 0}, /* 13.0 U1 */
	{130101, GS_MODE_WINDOWS,   S / 10,   S,      1, 1}, /* 13.1 U1: correlation ids of graphs hold after the first session */
};

const struct gs_policy *gs_policy_of(uint32_t version, const char *soname)
{
	const struct gs_policy *found = &table[0];
	if (version == 18 && strstr(soname, ".so.11"))
		return found;
	for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
		if (version >= table[i].from)
			found = &table[i];
	return found;
}
