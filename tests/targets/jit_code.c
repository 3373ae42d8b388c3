/* SPDX-License-Identifier: Apache-2.0 */
/* Code for jit_host.c, which loads the relocatable object as LLVM's run-time linker does. Frames without a frame pointer: jit_entry,
 * 6 times jit_middle, jit_leaf. Build with -O2 -fomit-frame-pointer -fno-optimize-sibling-calls -fcf-protection=none. */
static __attribute__((noinline, noclone)) unsigned long jit_leaf(unsigned long n)
{
	volatile unsigned long sum = 0;

	for (unsigned long i = 0; i < n; i++)
		sum += i;
	return sum;
}

static __attribute__((noinline, noclone)) unsigned long jit_middle(unsigned long n, int depth)
{
	volatile unsigned long room[8] = { n };
	unsigned long sum = depth ? jit_middle(n, depth - 1) : jit_leaf(n);

	return sum + room[0];
}

unsigned long jit_entry(unsigned long n)
{
	return jit_middle(n, 5) + 1;
}
