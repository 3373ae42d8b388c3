// SPDX-License-Identifier: Apache-2.0
/* Plays a schedule (recording.py) on the simulated node: replay SCHEDULE LOOPS. One thread of ours per thread of the recording makes
 * its calls at the recorded times, or as soon as the call before returns; operations take as long as they did. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../cuda/simulated.h"

#define THREADS 64
#define STREAMS 256

enum kind { KERNEL, COPY, SET, WAIT };

struct operation {
	uint64_t call_ns, duration_ns, bytes;
	enum kind kind;
	int stream, copy_kind;
	dim3 grid, block;
	unsigned shared, registers;
	char *name;
	const void *host;
};

struct thread {
	pthread_t thread;
	struct operation *operations;
	size_t n, room;
	int device;
};

extern void **__cudaRegisterFatBinary(void *binary);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);

static struct thread threads[THREADS];
static unsigned long loops;
static struct { int used, recorded; cudaStream_t stream; } streams[THREADS][STREAMS];
static char *names[4096];
static char hosts[4096]; /* addresses that stand for kernels' host stubs */
static size_t n_names;

static const void *host_of(const char *name, void **module)
{
	size_t i = 0;
	while (i < n_names && strcmp(names[i], name) != 0)
		i++;
	if (i == n_names && n_names < 4096) {
		names[n_names++] = strdup(name);
		__cudaRegisterFunction(module, &hosts[i], NULL, names[i], -1, NULL, NULL, NULL, NULL, NULL);
	}
	return &hosts[i];
}

static int read_schedule(const char *path)
{
	static char line[8192], kind[16], name[8000];
	FILE *file = fopen(path, "r");
	void **module = __cudaRegisterFatBinary(NULL);
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file)) {
		struct operation new = {0};
		int number, device;
		if (sscanf(line, "%d %d %d %lu %15s %lu %lu %d %u %u %u %u %u %u %u %u %7999[^\n]", &number, &device, &new.stream, &new.call_ns,
			   kind, &new.duration_ns, &new.bytes, &new.copy_kind, &new.grid.x, &new.grid.y, &new.grid.z, &new.block.x,
			   &new.block.y, &new.block.z, &new.shared, &new.registers, name) != 17 ||
		    number < 0 || number >= THREADS)
			return 0;
		struct thread *thread = &threads[number];
		new.kind = *kind == 'k' ? KERNEL : *kind == 'c' ? COPY : *kind == 's' ? SET : WAIT;
		if (new.kind == KERNEL) {
			new.host = host_of(name, module);
			simKernel(name, 1, 0, new.registers, 0);
		}
		thread->device = device;
		if (thread->n == thread->room)
			thread->operations = realloc(thread->operations, (thread->room = 2 * thread->room + 1024) * sizeof(new));
		thread->operations[thread->n++] = new;
	}
	fclose(file);
	return 1;
}

/* The recording's streams in the order they come; its first is the default stream, if its id is at most 7. */
static cudaStream_t stream_of(int number, int recorded)
{
	for (int i = 0; i < STREAMS; i++) {
		if (streams[number][i].used && streams[number][i].recorded == recorded)
			return streams[number][i].stream;
		if (streams[number][i].used)
			continue;
		streams[number][i].used = 1;
		streams[number][i].recorded = recorded;
		if (recorded > 7)
			cudaStreamCreateWithFlags(&streams[number][i].stream, cudaStreamNonBlocking);
		return streams[number][i].stream;
	}
	return NULL;
}

static void play(const struct operation *operation, cudaStream_t stream, void *host, void *device)
{
	if (operation->duration_ns)
		simNextDuration(operation->duration_ns);
	if (operation->kind == KERNEL)
		cudaLaunchKernel(operation->host, operation->grid, operation->block, NULL, operation->shared, stream);
	else if (operation->kind == SET)
		cudaMemsetAsync(device, 0, operation->bytes, stream);
	else if (operation->kind == WAIT)
		cudaStreamSynchronize(stream);
	else if (operation->copy_kind == 1)
		cudaMemcpyAsync(device, host, operation->bytes, cudaMemcpyHostToDevice, stream);
	else if (operation->copy_kind == 2)
		cudaMemcpyAsync(host, device, operation->bytes, cudaMemcpyDeviceToHost, stream);
	else
		cudaMemcpyAsync(device, device, operation->bytes, cudaMemcpyDeviceToDevice, stream);
}

static void *run(void *argument)
{
	struct thread *thread = argument;
	int number = thread - threads, count = 1;
	void *host = NULL, *device = NULL;
	cudaGetDeviceCount(&count);
	if (cudaSetDevice(thread->device % (count ? count : 1)) || cudaMallocHost(&host, 4096) || cudaMalloc(&device, 1 << 20)) {
		fprintf(stderr, "replay: no device %d\n", thread->device);
		exit(1);
	}
	for (unsigned long loop = 0; !loops || loop < loops; loop++) {
		uint64_t start = simNow();
		for (size_t i = 0; i < thread->n; i++) {
			uint64_t now = simNow(), at = start + thread->operations[i].call_ns;
			if (at > now + 50000)
				simAdvance(at - now);
			play(&thread->operations[i], stream_of(number, thread->operations[i].stream), host, device);
		}
		cudaDeviceSynchronize();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 3 || !read_schedule(argv[1])) {
		fprintf(stderr, "usage: replay SCHEDULE LOOPS (0: until stopped)\n");
		return 2;
	}
	loops = strtoul(argv[2], NULL, 10);
	for (int i = 0; i < THREADS; i++)
		if (threads[i].n)
			pthread_create(&threads[i].thread, NULL, run, &threads[i]);
	for (int i = 0; i < THREADS; i++)
		if (threads[i].n)
			pthread_join(threads[i].thread, NULL);
	return 0;
}
