/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

unsigned gs_core_version(void)
{
	return GS_CORE_VERSION;
}
