/* Functions of the software driver that the software NCCL needs in addition to CUDA's calls.
 * NVIDIA's NCCL uses the runtime and its own kernels for these purposes. */
#ifndef SOFTGPU_ABI_SOFTGPU_H
#define SOFTGPU_ABI_SOFTGPU_H

#include "cuda.h"

/* Queues a kernel. Each time the work is due, the stream's thread calls run with the device.
 * drop is called once, when the work can no longer run. If softgpu_launch fails, it does not
 * call drop. */
API CUresult softgpu_launch(CUstream stream, void (*run)(void *arg, int device),
                            void (*drop)(void *arg), void *arg);

/* Adds to the number of kernels that run on a device. The number may be negative. Kernels that the
 * driver has not loaded yet are loaded when no kernel runs. */
API void softgpu_running(int device, int kernels);

/* Reports whether the stream is being captured. */
API CUresult softgpu_capturing(CUstream stream, int *capturing);

/* Must be called before a call that captures forbid. If a capture forbids it, the capture is
 * invalidated. */
API CUresult softgpu_guard(void);

/* Returns how often a kernel of that name has started in this process, on all devices. Tests use
 * it. */
API unsigned long softgpu_runs(const char *kernel);

/* Waits for all work of this thread's device, as the driver does before it frees memory. Meanwhile
 * other calls of the context block, except queries and calls about the context. An H100 behaves
 * like this during ncclCommAbort. */
API void softgpu_free(void);

/* Puts a device into a permanent error state, as an illegal access does. */
API void softgpu_fault(int device, CUresult code);

/* Returns the number of a device on this machine, independent of CUDA_VISIBLE_DEVICES. */
API int softgpu_physical(CUdevice device);

/* Returns the code with which SOFTGPU_FAIL makes this call of an entry point fail, or 0. */
API int softgpu_inject(const char *entry, int otherwise);

#endif
