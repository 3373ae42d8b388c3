/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

static int starts(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

enum gs_call gs_call_of(const char *name)
{
	static const struct {
		const char *prefix;
		int call;
	} table[] = {
		{"LaunchHostFunc", 0}, /* runs on the CPU */
		{"Launch", GS_CALL_KERNEL}, /* Kernel, KernelEx(C), CooperativeKernel(MultiDevice), Grid(Async) */
		{"GraphLaunch", GS_CALL_GRAPH},
		{"Memcpy", GS_CALL_MEMCPY}, /* 2D, 3D, Peer, Batch, Async, to symbols and arrays */
		{"Memset", GS_CALL_MEMSET},
	};
	if (starts(name, "cuda"))
		name += 4;
	else if (starts(name, "cu64"))
		name += 4;
	else if (starts(name, "cu"))
		name += 2;
	else
		return 0;
	for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
		if (starts(name, table[i].prefix))
			return table[i].call;
	return 0;
}

static void list_domain(struct gs_calls *calls, const struct gs_cupti *cupti, int domain, unsigned index)
{
	unsigned missing = 0;
	for (uint32_t cbid = 1; cbid < GS_MOST_CBIDS && missing < 64; cbid++) {
		const char *name = NULL;
		if (cupti->callback_name(domain, cbid, &name) || !name) {
			missing++; /* numbers may have holes; past the last one all fail */
			continue;
		}
		missing = 0;
		enum gs_call call = gs_call_of(name);
		calls->kind[index][cbid] = (uint8_t)call;
		if (call && calls->n_listed < sizeof calls->listed / sizeof *calls->listed)
			calls->listed[calls->n_listed++] = (uint16_t)(index << 15 | cbid);
	}
}

void gs_calls_list(struct gs_calls *calls, const struct gs_cupti *cupti)
{
	memset(calls, 0, sizeof *calls);
	list_domain(calls, cupti, DOMAIN_RUNTIME, 1);
	list_domain(calls, cupti, DOMAIN_DRIVER, 0);
}
