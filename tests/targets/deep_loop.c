/* SPDX-License-Identifier: Apache-2.0 */
/* A busy loop 27 frames deep: main, 25 times descend(), spin(). Build with -O0: each function
 * keeps a frame pointer, and none calls the next as its tail. */
static volatile unsigned long sink;

__attribute__((noinline)) void spin(void)
{
	for (int i = 0; i < 10000000; i++)
		sink += i;
}

__attribute__((noinline)) void descend(int depth)
{
	if (depth > 1)
		descend(depth - 1);
	else
		spin();
	sink++;
}

int main(void)
{
	for (;;)
		descend(25);
}
