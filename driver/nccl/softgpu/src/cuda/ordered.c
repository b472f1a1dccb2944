/* What happens in stream order: waits for words of memory, and memory that comes and goes. */
#include <stdlib.h>
#include <time.h>

#include "driver.h"

struct look {
    _Atomic unsigned *word;
    unsigned value, flags;
};

static bool look_sees(const struct look *l) {
    unsigned found = atomic_load(l->word);
    return l->flags == 1 ? found == l->value : (int)(found - l->value) >= 0;
}

static void look_run(void *arg, int device) {
    struct look *l = arg;
    struct timespec nap = {.tv_nsec = 20000};
    while (!look_sees(l) && atomic_load(&context_of(device)->error) == CUDA_SUCCESS)
        nanosleep(&nap, NULL);
}

static CUresult queue_ordered(void (*run)(void *, int), void (*drop)(void *), void *arg,
                              CUstream stream) {
    struct work *w = work_new(run, drop, arg);
    CUresult result = stream_queue(stream, w);
    if (result != CUDA_SUCCESS)
        work_release(w);
    return result;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, unsigned value,
                                unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (word % 4 != 0 || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct look *l = malloc(sizeof *l);
    if (l == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *l = (struct look){.word = (_Atomic unsigned *)word, .value = value, .flags = flags};
    return queue_ordered(look_run, free, l, stream);
}

/* The memory is there at once; what is early here is still right. */
CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    void *memory = bytes == 0 ? NULL : aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (memory == NULL)
        return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    *at = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static void nothing_run(void *arg, int device) {
    (void)arg;
    (void)device;
}

/* The memory goes with the work that frees it: after it has run, or with its graph. */
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    return queue_ordered(nothing_run, free, (void *)(uintptr_t)at, stream);
}
