/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of known shape, one kind per run: stacks KIND. Each ends in spin(), below main. Build with -O2 -fomit-frame-pointer
 * -fno-optimize-sibling-calls -pthread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static volatile unsigned long sink;

KEEP void spin(void)
{
	for (int i = 0; i < 1000000; i++)
		sink += i;
}

KEEP void descend(int depth)
{
	volatile char room[40] = { (char)depth };

	if (depth > 1)
		descend(depth - 1);
	else
		spin();
	sink += room[0];
}

KEEP void deep(void)
{
	descend(40);
}

KEEP static void on_signal(int number)
{
	for (;;) {
		spin();
		sink += number;
	}
}

KEEP static void signalled(int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
	stack_t other = { .ss_sp = malloc(65536), .ss_size = 65536 };

	sigaltstack(&other, NULL);
	sigaction(SIGALRM, &action, NULL);
	alarm(1);
	for (;;)
		spin();
}

KEEP static void in_thread(void)
{
	for (;;)
		descend(5);
}

static void *thread(void *argument)
{
	in_thread();
	return argument;
}

KEEP static void threads(void)
{
	pthread_t one;

	pthread_create(&one, NULL, thread, NULL);
	pthread_join(one, NULL);
}

KEEP static void vforked(void)
{
	for (;;) {
		pid_t child = vfork(); /* shares this stack until it ends */

		if (!child) {
			for (int i = 0; i < 100; i++)
				spin();
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
}

KEEP static int cloned(void *argument)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	in_thread();
	return argument != NULL;
}

KEEP static void with_clone(void)
{
	char *stack = malloc(1 << 20);

	clone(cloned, stack + (1 << 20), CLONE_VM | SIGCHLD, NULL);
	waitpid(-1, NULL, 0);
}

KEEP static void realigned(void)
{
	volatile char room[64] __attribute__((aligned(64))) = { 1 }; /* CFA by a register that only the frame has */

	for (;;) {
		spin();
		sink += room[0];
	}
}

/* Hand-written code without a word of unwind information, as in older crypto and BLAS libraries. */
void bare_leaf(unsigned long n);
void bare_frame(void (*f)(void));
void bare_pushes(void (*f)(void));
__asm__(".text\n"
	".type bare_leaf, @function\n"
	"bare_leaf: 1: dec %rdi\n jnz 1b\n ret\n .size bare_leaf, . - bare_leaf\n"
	".type bare_frame, @function\n"
	"bare_frame: push %rbp\n mov %rsp, %rbp\n sub $64, %rsp\n call *%rdi\n leave\n ret\n .size bare_frame, . - bare_frame\n"
	".type bare_pushes, @function\n"
	"bare_pushes: push %rbx\n push %rbp\n push %r12\n sub $128, %rsp\n xor %ebp, %ebp\n call *%rdi\n add $128, %rsp\n"
	" pop %r12\n pop %rbp\n pop %rbx\n ret\n .size bare_pushes, . - bare_pushes\n");

KEEP static void leaf_without_rows(void)
{
	for (;;)
		bare_leaf(100000000);
}

KEEP static void frame_without_rows(void)
{
	for (;;)
		bare_frame(spin);
}

KEEP static void pushes_without_rows(void)
{
	for (;;)
		bare_pushes(spin);
}

static void signal_here(void)
{
	signalled(0);
}

static void signal_elsewhere(void)
{
	signalled(SA_ONSTACK);
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = { { "deep", deep }, { "signal", signal_here }, { "altstack", signal_elsewhere }, { "threads", threads },
	      { "vfork", vforked }, { "clone", with_clone }, { "realigned", realigned }, { "bare_leaf", leaf_without_rows },
	      { "bare_frame", frame_without_rows }, { "bare_pushes", pushes_without_rows } };

int main(int count, char **arguments)
{
	puts("busy");
	fflush(stdout);
	for (unsigned i = 0; count > 1 && i < sizeof(kinds) / sizeof(*kinds); i++)
		while (!strcmp(kinds[i].name, arguments[1]))
			kinds[i].run();
	return 1;
}
