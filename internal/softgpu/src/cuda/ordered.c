/* Operations in stream order: waits for memory words, and allocation and release of memory. */
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
    if (result != CUDA_SUCCESS) {
        w->drop = NULL;
        work_release(w);
    }
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
    result = queue_ordered(look_run, free, l, stream);
    if (result != CUDA_SUCCESS)
        free(l);
    return result;
}

struct mark {
    _Atomic unsigned *word;
    unsigned value;
};

static void mark_run(void *arg, int device) {
    struct mark *m = arg;
    (void)device;
    atomic_store(m->word, m->value);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr word, unsigned value,
                                 unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (word % 4 != 0 || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct mark *m = malloc(sizeof *m);
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct mark){.word = (_Atomic unsigned *)word, .value = value};
    result = queue_ordered(mark_run, free, m, stream);
    if (result != CUDA_SUCCESS)
        free(m);
    return result;
}

/* Allocates memory at once, which is earlier than the stream order requires. Memory that a capture
 * allocates is the same in each launch of the graph. */
CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    uintptr_t base = 0;
    CUresult result = stream_resolve(&stream);
    if (result == CUDA_SUCCESS)
        result = plain_new(PLAIN_DEVICE, stream->device, bytes, &base);
    *at = base;
    return result;
}

static void nothing_run(void *arg, int device) {
    (void)arg;
    (void)device;
}

static void free_drop(void *arg) { plain_free((uintptr_t)arg); }

/* Frees memory when the work that frees it is released: after it has run, or with its graph. */
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    uintptr_t base = 0;
    size_t bytes;
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (plain_kind((uintptr_t)at, &base, &bytes) != PLAIN_DEVICE || base != at)
        return CUDA_ERROR_INVALID_VALUE;
    return queue_ordered(nothing_run, free_drop, (void *)base, stream);
}
