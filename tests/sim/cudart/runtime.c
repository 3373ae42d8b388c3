// SPDX-License-Identifier: Apache-2.0
/* The simulated libcudart: a thin layer over libcuda.so.1, which it opens when first needed, as NVIDIA's does; without one
 * every call is cudaErrorInsufficientDriver. Built once for CUDA 12 and once for 13, each with its own headers. */
#include "../cuda/engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <cupti.h>

#undef cudaGetDeviceProperties
#define BOTH(define, suffix) define(, 0) define(suffix, 1)

static void *library;
static struct gs_sim_driver *driver;
static __thread cudaError_t last;
static __thread int chosen, bound = -1;

static void open_driver(void)
{
	library = dlopen("libcuda.so.1", RTLD_NOW);
	struct gs_sim_driver *(*get)(void) = library ? (struct gs_sim_driver * (*)(void)) dlsym(library, "gs_sim_driver") : NULL;
	struct gs_sim_driver *found = get ? get() : NULL;
	driver = found && found->size == sizeof(*found) ? found : NULL;
}

/* Asked anew by each place that calls it, once. */
#define CU(name) ({ static __typeof__(&name) at_; if (!at_) at_ = (__typeof__(&name))dlsym(library, TEXT(name)); at_; })
#define TEXT(name) TEXT_(name)
#define TEXT_(name) #name

static int present(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, open_driver);
	return driver != NULL;
}

static cudaError_t translate(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_NOT_INITIALIZED: return cudaErrorInitializationError;
	case CUDA_ERROR_INVALID_HANDLE: return cudaErrorInvalidResourceHandle;
	case CUDA_ERROR_INVALID_CONTEXT: return cudaErrorDeviceUninitialized;
	default: return (cudaError_t)result; /* the same numbers, for what the simulation returns */
	}
}

/* Starts the driver, and makes the chosen device's primary context current. */
static cudaError_t start(void)
{
	static int retained[GS_SIM_MAX_DEVICES];
	CUcontext context;
	if (!present())
		return cudaErrorInsufficientDriver;
	CUresult result = driver->initialized ? CUDA_SUCCESS : CU(cuInit)(0);
	if (result || (bound == chosen && retained[chosen]))
		return translate(result);
	result = CU(cuDevicePrimaryCtxRetain)(&context, chosen);
	if (!result)
		result = CU(cuCtxSetCurrent)(context);
	if (!result) {
		retained[chosen] = 1;
		bound = chosen;
	}
	return translate(result);
}

static struct gs_sim_context *current(void)
{
	CUcontext context = NULL;
	CU(cuCtxGetCurrent)(&context);
	return (struct gs_sim_context *)context;
}

/* A call as CUPTI shows it: callback id and parameter structure carry the version in which its signature came. */
#define CALL(function, kernel, ...) \
	cudaError_t result_ = start(); \
	if (result_) \
		return last = result_; \
	function##_params parameters_ = {__VA_ARGS__}; \
	struct gs_sim_call call_ = {.domain = GS_SIM_RUNTIME, .cbid = CUPTI_RUNTIME_TRACE_CBID_##function, .name = #function, \
				    .symbol = kernel, .params = &parameters_, .result = &result_, .context = current()}; \
	driver->call_begin(&call_)
#define END(value) ({ result_ = translate(value); driver->call_end(&call_); if (result_) last = result_; result_; })

/* ---- kernels: host addresses to names ---- */

struct entry {
	struct entry *next;
	const void *host;
	char *name;
	CUfunction function;
};
static struct entry *entries[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *binary)
{
	void **handle = malloc(sizeof(*handle));
	*handle = binary;
	return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { free(handle); }
char __cudaInitModule(void **handle) { (void)handle; return 1; }

static struct entry **chain_of(const void *host) { return &entries[((uintptr_t)host * 0x9e3779b97f4a7c15ull) >> 54]; }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *a, uint3 *b, dim3 *c,
			    dim3 *d, int *e)
{
	(void)handle, (void)device, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
	struct entry *entry = calloc(1, sizeof(*entry)), **chain = chain_of(host);
	entry->host = host;
	entry->name = strdup(name);
	pthread_mutex_lock(&lock);
	entry->next = *chain;
	__atomic_store_n(chain, entry, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

static CUfunction function_of(const void *host)
{
	struct entry *entry = __atomic_load_n(chain_of(host), __ATOMIC_ACQUIRE);
	while (entry && entry->host != host)
		entry = entry->next;
	if (entry && !entry->function && present()) {
		CUfunction function = NULL;
		CU(cuModuleGetFunction)(&function, NULL, entry->name);
		entry->function = function;
	}
	return entry ? entry->function : NULL;
}

static const char *name_of(const void *host)
{
	struct gs_sim_function *function = (struct gs_sim_function *)function_of(host);
	return function ? function->name : NULL;
}

static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } configuration[8];
static __thread int n_configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
	if (n_configurations == 8)
		return cudaErrorLaunchFailure;
	configuration[n_configurations++] = (__typeof__(configuration[0])){grid, block, shared, stream};
	return cudaSuccess;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
	if (!n_configurations)
		return cudaErrorLaunchFailure;
	n_configurations--;
	*grid = configuration[n_configurations].grid;
	*block = configuration[n_configurations].block;
	*shared = configuration[n_configurations].shared;
	*(cudaStream_t *)stream = configuration[n_configurations].stream;
	return cudaSuccess;
}

static cudaError_t missing(void) { return last = cudaErrorInvalidDeviceFunction; }

#define PTSZ_DRIVER(name, own) ((own) ? CU(name##_ptsz) : CU(name))
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2_ptsz(void *, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpyAsync_ptsz(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemsetD8Async_ptsz(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuStreamQuery_ptsz(CUstream);
CUresult cuEventRecord_ptsz(CUevent, CUstream);
CUresult cuStreamWaitEvent_ptsz(CUstream, CUevent, unsigned);
CUresult cuGraphLaunch_ptsz(CUgraphExec, CUstream);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture_ptsz(CUstream, CUgraph *);

#define SHAPE grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, arguments
#define GIVEN .func = host, .gridDim = grid, .blockDim = block, .args = arguments, .sharedMem = shared, .stream = stream
#define LAUNCHES(suffix, own) \
	cudaError_t cudaLaunchKernel##suffix(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) \
	{ \
		CALL(cudaLaunchKernel##suffix##_v7000, name_of(host), GIVEN); \
		CUfunction function = function_of(host); \
		return END(function ? PTSZ_DRIVER(cuLaunchKernel, own)(function, SHAPE, NULL) : CUDA_ERROR_INVALID_HANDLE); \
	} \
	cudaError_t cudaLaunchCooperativeKernel##suffix(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, \
							cudaStream_t stream) \
	{ \
		CALL(cudaLaunchCooperativeKernel##suffix##_v9000, name_of(host), GIVEN); \
		CUfunction function = function_of(host); \
		return END(function ? PTSZ_DRIVER(cuLaunchCooperativeKernel, own)(function, SHAPE) : CUDA_ERROR_INVALID_HANDLE); \
	} \
	cudaError_t cudaLaunchKernelExC##suffix(const cudaLaunchConfig_t *config, const void *host, void **arguments) \
	{ \
		CALL(cudaLaunchKernelExC##suffix##_v11060, name_of(host), .config = config, .func = host, .args = arguments); \
		CUfunction function = function_of(host); \
		CUlaunchConfig its = {.gridDimX = config->gridDim.x, .gridDimY = config->gridDim.y, .gridDimZ = config->gridDim.z, \
				      .blockDimX = config->blockDim.x, .blockDimY = config->blockDim.y, \
				      .blockDimZ = config->blockDim.z, .sharedMemBytes = config->dynamicSmemBytes, \
				      .hStream = config->stream}; \
		return END(function ? PTSZ_DRIVER(cuLaunchKernelEx, own)(&its, function, arguments, NULL) : CUDA_ERROR_INVALID_HANDLE); \
	}
BOTH(LAUNCHES, _ptsz)

/* What nvcc of CUDA 12.9 and later calls: a jump, so that cudaLaunchKernel's own frame stands in its place. The kernel handle is
 * the host address here. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
	*kernel = (cudaKernel_t)host;
	return start() ? last : function_of(host) ? cudaSuccess : missing();
}

__asm__(".globl __cudaLaunchKernel\n.type __cudaLaunchKernel,@function\n__cudaLaunchKernel:\n\tjmp cudaLaunchKernel@PLT\n"
	".size __cudaLaunchKernel,.-__cudaLaunchKernel\n"
	".globl __cudaLaunchKernel_ptsz\n.type __cudaLaunchKernel_ptsz,@function\n__cudaLaunchKernel_ptsz:\n\tjmp cudaLaunchKernel_ptsz@PLT\n"
	".size __cudaLaunchKernel_ptsz,.-__cudaLaunchKernel_ptsz\n");

/* ---- copies, memsets, waits, events ---- */

static CUresult copy_async(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream, int own)
{
	switch (kind) {
	case cudaMemcpyHostToDevice: return PTSZ_DRIVER(cuMemcpyHtoDAsync_v2, own)((CUdeviceptr)target, source, bytes, stream);
	case cudaMemcpyDeviceToHost: return PTSZ_DRIVER(cuMemcpyDtoHAsync_v2, own)(target, (CUdeviceptr)source, bytes, stream);
	case cudaMemcpyDeviceToDevice: return PTSZ_DRIVER(cuMemcpyDtoDAsync_v2, own)((CUdeviceptr)target, (CUdeviceptr)source, bytes, stream);
	default: return PTSZ_DRIVER(cuMemcpyAsync, own)((CUdeviceptr)target, (CUdeviceptr)source, bytes, stream);
	}
}

static CUresult copy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
	switch (kind) {
	case cudaMemcpyHostToDevice: return CU(cuMemcpyHtoD)((CUdeviceptr)target, source, bytes);
	case cudaMemcpyDeviceToHost: return CU(cuMemcpyDtoH)(target, (CUdeviceptr)source, bytes);
	case cudaMemcpyDeviceToDevice: return CU(cuMemcpyDtoD)((CUdeviceptr)target, (CUdeviceptr)source, bytes);
	default: return CU(cuMemcpy)((CUdeviceptr)target, (CUdeviceptr)source, bytes);
	}
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
	CALL(cudaMemcpy_v3020, NULL, .dst = target, .src = source, .count = bytes, .kind = kind);
	return END(copy(target, source, bytes, kind));
}

cudaError_t cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t bytes, cudaStream_t stream)
{
	CUcontext contexts[2] = {NULL, NULL};
	CALL(cudaMemcpyPeerAsync_v4000, NULL, .dst = target, .dstDevice = to, .src = source, .srcDevice = from, .count = bytes,
	     .stream = stream);
	CUresult result = CU(cuDevicePrimaryCtxRetain)(&contexts[0], to);
	if (!result)
		result = CU(cuDevicePrimaryCtxRetain)(&contexts[1], from);
	return END(result ? result : CU(cuMemcpyPeerAsync)((CUdeviceptr)target, contexts[0], (CUdeviceptr)source, contexts[1], bytes, stream));
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	CALL(cudaMemcpyAsync_v3020, NULL, .dst = target, .src = source, .count = bytes, .kind = kind, .stream = stream);
	return END(copy_async(target, source, bytes, kind, stream, 0));
}

cudaError_t cudaMemcpyAsync_ptsz(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	CALL(cudaMemcpyAsync_ptsz_v7000, NULL, .dst = target, .src = source, .count = bytes, .kind = kind, .stream = stream);
	return END(copy_async(target, source, bytes, kind, stream, 1));
}

cudaError_t cudaMemset(void *target, int value, size_t bytes)
{
	CALL(cudaMemset_v3020, NULL, .devPtr = target, .value = value, .count = bytes);
	return END(CU(cuMemsetD8)((CUdeviceptr)target, value, bytes));
}

#define REST(suffix, own, version_old) \
	cudaError_t cudaMemsetAsync##suffix(void *target, int value, size_t bytes, cudaStream_t stream) \
	{ \
		CALL(cudaMemsetAsync##suffix##version_old, NULL, .devPtr = target, .value = value, .count = bytes, .stream = stream); \
		return END(PTSZ_DRIVER(cuMemsetD8Async, own)((CUdeviceptr)target, value, bytes, stream)); \
	} \
	cudaError_t cudaStreamSynchronize##suffix(cudaStream_t stream) \
	{ \
		CALL(cudaStreamSynchronize##suffix##version_old, NULL, .stream = stream); \
		return END(PTSZ_DRIVER(cuStreamSynchronize, own)(stream)); \
	} \
	cudaError_t cudaStreamQuery##suffix(cudaStream_t stream) \
	{ \
		CALL(cudaStreamQuery##suffix##version_old, NULL, .stream = stream); \
		return END(PTSZ_DRIVER(cuStreamQuery, own)(stream)); \
	} \
	cudaError_t cudaEventRecord##suffix(cudaEvent_t event, cudaStream_t stream) \
	{ \
		CALL(cudaEventRecord##suffix##version_old, NULL, .event = event, .stream = stream); \
		return END(PTSZ_DRIVER(cuEventRecord, own)(event, stream)); \
	} \
	cudaError_t cudaStreamWaitEvent##suffix(cudaStream_t stream, cudaEvent_t event, unsigned int flags) \
	{ \
		CALL(cudaStreamWaitEvent##suffix##version_old, NULL, .stream = stream, .event = event, .flags = flags); \
		return END(PTSZ_DRIVER(cuStreamWaitEvent, own)(stream, event, flags)); \
	}
REST(, 0, _v3020)
REST(_ptsz, 1, _v7000)

#define GRAPHS(suffix, own) \
	cudaError_t cudaGraphLaunch##suffix(cudaGraphExec_t graph, cudaStream_t stream) \
	{ \
		CALL(cudaGraphLaunch##suffix##_v10000, NULL, .graphExec = graph, .stream = stream); \
		return END(PTSZ_DRIVER(cuGraphLaunch, own)(graph, stream)); \
	} \
	cudaError_t cudaStreamBeginCapture##suffix(cudaStream_t stream, enum cudaStreamCaptureMode mode) \
	{ \
		CALL(cudaStreamBeginCapture##suffix##_v10000, NULL, .stream = stream, .mode = mode); \
		return END(PTSZ_DRIVER(cuStreamBeginCapture_v2, own)(stream, (CUstreamCaptureMode)mode)); \
	} \
	cudaError_t cudaStreamEndCapture##suffix(cudaStream_t stream, cudaGraph_t *graph) \
	{ \
		CALL(cudaStreamEndCapture##suffix##_v10000, NULL, .stream = stream, .pGraph = graph); \
		return END(PTSZ_DRIVER(cuStreamEndCapture, own)(stream, graph)); \
	}
BOTH(GRAPHS, _ptsz)

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
	CALL(cudaGraphInstantiate_v12000, NULL, .pGraphExec = executable, .graph = graph, .flags = flags);
	return END(CU(cuGraphInstantiateWithFlags)(executable, graph, flags));
}

#define FORWARD(version, signature, driver_call, ...) \
	cudaError_t signature { CALL(version, NULL, __VA_ARGS__); return END(driver_call); }

FORWARD(cudaGraphDestroy_v10000, cudaGraphDestroy(cudaGraph_t graph), CU(cuGraphDestroy)(graph), .graph = graph)
FORWARD(cudaGraphExecDestroy_v10000, cudaGraphExecDestroy(cudaGraphExec_t graph), CU(cuGraphExecDestroy)(graph), .graphExec = graph)
FORWARD(cudaStreamCreate_v3020, cudaStreamCreate(cudaStream_t *stream), CU(cuStreamCreate)(stream, 0), .pStream = stream)
FORWARD(cudaStreamCreateWithFlags_v5000, cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags),
	CU(cuStreamCreate)(stream, flags), .pStream = stream, .flags = flags)
FORWARD(cudaStreamCreateWithPriority_v5050, cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority),
	CU(cuStreamCreateWithPriority)(stream, flags, priority), .pStream = stream, .flags = flags, .priority = priority)
FORWARD(cudaStreamDestroy_v5050, cudaStreamDestroy(cudaStream_t stream), CU(cuStreamDestroy)(stream), .stream = stream)
FORWARD(cudaEventCreate_v3020, cudaEventCreate(cudaEvent_t *event), CU(cuEventCreate)(event, 0), .event = event)
FORWARD(cudaEventCreateWithFlags_v3020, cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags),
	CU(cuEventCreate)(event, flags), .event = event, .flags = flags)
FORWARD(cudaEventDestroy_v3020, cudaEventDestroy(cudaEvent_t event), CU(cuEventDestroy)(event), .event = event)
FORWARD(cudaEventSynchronize_v3020, cudaEventSynchronize(cudaEvent_t event), CU(cuEventSynchronize)(event), .event = event)
FORWARD(cudaEventQuery_v3020, cudaEventQuery(cudaEvent_t event), CU(cuEventQuery)(event), .event = event)
FORWARD(cudaMalloc_v3020, cudaMalloc(void **pointer, size_t bytes), CU(cuMemAlloc)((CUdeviceptr *)pointer, bytes), .devPtr = pointer,
	.size = bytes)
FORWARD(cudaFree_v3020, cudaFree(void *pointer), CU(cuMemFree)((CUdeviceptr)pointer), .devPtr = pointer)
FORWARD(cudaMallocAsync_v11020, cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream),
	CU(cuMemAllocAsync)((CUdeviceptr *)pointer, bytes, stream), .devPtr = pointer, .size = bytes, .hStream = stream)
FORWARD(cudaFreeAsync_v11020, cudaFreeAsync(void *pointer, cudaStream_t stream), CU(cuMemFreeAsync)((CUdeviceptr)pointer, stream),
	.devPtr = pointer, .hStream = stream)
FORWARD(cudaMallocHost_v3020, cudaMallocHost(void **pointer, size_t bytes), CU(cuMemHostAlloc)(pointer, bytes, 0), .ptr = pointer,
	.size = bytes)
FORWARD(cudaHostAlloc_v3020, cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags), CU(cuMemHostAlloc)(pointer, bytes, flags),
	.pHost = pointer, .size = bytes, .flags = flags)
FORWARD(cudaFreeHost_v3020, cudaFreeHost(void *pointer), CU(cuMemFreeHost)(pointer), .ptr = pointer)

cudaError_t cudaDeviceSynchronize(void)
{
	cudaError_t result = start();
	struct gs_sim_call call = {.domain = GS_SIM_RUNTIME, .cbid = CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020,
				   .name = "cudaDeviceSynchronize_v3020", .result = &result};
	CUresult (*synchronize)(void) = result ? NULL : (CUresult(*)(void))dlsym(library, "cuCtxSynchronize");
	if (result)
		return last = result;
	call.context = current();
	driver->call_begin(&call);
	result = translate(synchronize());
	driver->call_end(&call);
	return result;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	CUresult (*elapsed)(float *, CUevent, CUevent) = present() ? (CUresult(*)(float *, CUevent, CUevent))dlsym(library, "cuEventElapsedTime")
								   : NULL;
	return elapsed ? translate(elapsed(milliseconds, from, to)) : cudaErrorInsufficientDriver;
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 0;
	if (!present())
		return last = cudaErrorInsufficientDriver;
	CUresult result = CU(cuInit)(0);
	if (!result)
		result = CU(cuDeviceGetCount)(count);
	return last = translate(result);
}

cudaError_t cudaSetDevice(int device)
{
	int count;
	cudaError_t result = cudaGetDeviceCount(&count);
	if (result)
		return result;
	if (device < 0 || device >= count)
		return last = cudaErrorInvalidDevice;
	chosen = device;
	return start();
}

cudaError_t cudaGetDevice(int *device)
{
	*device = chosen;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = 0;
	return present() ? translate(CU(cuDriverGetVersion)(version)) : cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t result = last;
	last = cudaSuccess;
	return result;
}

cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaError" : "cudaSuccess"; }

const char *cudaGetErrorString(cudaError_t error)
{
	static __thread char text[64];
	snprintf(text, sizeof(text), error ? "simulated CUDA error %d" : "no error", error);
	return text;
}
