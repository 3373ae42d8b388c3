/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule.h"

uint64_t gs_random(uint64_t seed, uint64_t n)
{
	uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint64_t gs_window_start(uint64_t seed, uint64_t index, uint64_t period)
{
	return index * period + (uint64_t)((unsigned __int128)gs_random(seed, index) * period >> 64);
}

uint32_t gs_weight(uint32_t probability)
{
	uint64_t weight;
	if (!probability)
		return 0;
	if (probability == UINT32_MAX) /* stands for certainty: 1 is not to be had in 2^-32 */
		return 1u << 16;
	weight = (1ull << 48) / probability;
	return weight > UINT32_MAX ? UINT32_MAX : (uint32_t)weight;
}

int gs_node_level(const char *node, uint32_t pid, uint32_t share)
{
	uint64_t hash = pid;
	if (!share)
		return 0;
	for (; *node; node++)
		hash = gs_random(hash, (uint8_t)*node);
	return gs_random(hash, 0) % share == 0;
}
