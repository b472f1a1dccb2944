/* What the software NCCL asks of the software driver besides CUDA's own calls. NCCL proper
 * reaches the same through the runtime and its kernels. */
#ifndef SOFTGPU_ABI_SOFTGPU_H
#define SOFTGPU_ABI_SOFTGPU_H

#include "cuda.h"

/* Queues a kernel: run is called on the stream's thread with the device, each time the work comes
 * up; drop once, when nothing can run it again. On an error drop is not called. */
API CUresult softgpu_launch(CUstream stream, void (*run)(void *arg, int device),
                            void (*drop)(void *arg), void *arg);

/* Says that so many kernels more run on a device, or fewer. Those of the driver that have yet to come
 * there wait until none runs. */
API void softgpu_running(int device, int kernels);

/* Reports whether work for the stream is recorded now instead of run. */
API CUresult softgpu_capturing(CUstream stream, int *capturing);

/* Says that this thread is about to make a call that captures forbid. If one does, it is lost. */
API CUresult softgpu_guard(void);

/* Counts how often a kernel of that name has begun in this process, on all devices. Tests ask. */
API unsigned long softgpu_runs(const char *kernel);

/* Waits for all that the device of this thread does, as the driver does before it frees memory.
 * Other calls of that context wait meanwhile, except for queries and calls about the context (seen on
 * an H100, below ncclCommAbort). */
API void softgpu_free(void);

/* Fails a device for good, as an illegal access does. */
API void softgpu_fault(int device, CUresult code);

/* The number of a device among all of the machine, whatever CUDA_VISIBLE_DEVICES says. */
API int softgpu_physical(CUdevice device);

/* Returns the code with which this call of an entry point shall fail, by SOFTGPU_FAIL, or 0. */
API int softgpu_inject(const char *entry, int otherwise);

#endif
