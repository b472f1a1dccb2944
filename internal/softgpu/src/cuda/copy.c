/* Works that copy or fill memory, and works that call host functions. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

struct copy {
    uintptr_t dst, src;
    size_t bytes;
    void *staged; /* copy of the source at the time of the call, or NULL */
};

/* Puts the device into an error state if it may not access a range. Host memory is not checked. */
static bool may_touch(uintptr_t at, size_t bytes, int device) {
    if (mapping_place(at, bytes, device) != FORBIDDEN)
        return true;
    softgpu_fault(device, CUDA_ERROR_ILLEGAL_ADDRESS);
    return false;
}

static void copy_run(void *arg, int device) {
    struct copy *c = arg;
    const void *src = c->staged != NULL ? c->staged : (void *)c->src;
    if (may_touch(c->dst, c->bytes, device) && may_touch((uintptr_t)src, c->bytes, device))
        memmove((void *)c->dst, src, c->bytes);
}

static void copy_drop(void *arg) {
    struct copy *c = arg;
    free(c->staged);
    free(c);
}

/* Reports whether memory is pageable host memory. */
static bool pageable(uintptr_t at) {
    uintptr_t base;
    size_t bytes;
    return mapping_place(at, 1, 0) == ELSEWHERE && plain_kind(at, &base, &bytes) == NOT_PLAIN;
}

/* Queues a copy. A copy from pageable memory reads it before the call returns. A copy to pageable
 * memory completes before the call returns. Under capture only the addresses are recorded. */
static CUresult queue_copy(uintptr_t dst, uintptr_t src, size_t bytes, CUstream stream) {
    CUresult result = stream_resolve(&stream);
    int capturing;
    if (result != CUDA_SUCCESS || bytes == 0)
        return result;
    softgpu_capturing(stream, &capturing);
    struct copy *c = malloc(sizeof *c);
    if (c == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct copy){.dst = dst, .src = src, .bytes = bytes};
    if (!capturing && pageable(src) && (c->staged = malloc(bytes)) != NULL)
        memcpy(c->staged, (void *)src, bytes);
    struct work *w = work_new(copy_run, copy_drop, c);
    result = stream_queue(stream, w);
    if (result != CUDA_SUCCESS)
        work_release(w);
    else if (!capturing && pageable(dst))
        result = stream_drain(stream);
    return result;
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return queue_copy((uintptr_t)dst, (uintptr_t)src, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return queue_copy((uintptr_t)dst, (uintptr_t)src, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return queue_copy((uintptr_t)dst, (uintptr_t)src, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return queue_copy((uintptr_t)dst, (uintptr_t)src, bytes, stream);
}

struct fill {
    uintptr_t dst;
    unsigned value;
    size_t count, width;
};

/* Fills a whole mapping with zeros by discarding its pages. Mappings that are only zeroed then take
 * no memory. */
static bool drop_pages(uintptr_t at, size_t bytes) {
    pthread_mutex_lock(&memory_lock);
    struct mapping *m = mapping_find_locked(at);
    bool dropped = m != NULL && m->at.base == at && m->at.bytes == bytes &&
                   madvise((void *)at, bytes, MADV_REMOVE) == 0;
    pthread_mutex_unlock(&memory_lock);
    return dropped;
}

static void fill_run(void *arg, int device) {
    struct fill *f = arg;
    if (!may_touch(f->dst, f->count * f->width, device))
        return;
    if (f->value == 0 && drop_pages(f->dst, f->count * f->width))
        return;
    if (f->width == 1)
        memset((void *)f->dst, (int)f->value, f->count);
    else
        for (size_t i = 0; i < f->count; i++)
            ((unsigned *)f->dst)[i] = f->value;
}

static CUresult queue_fill(struct fill fill, CUstream stream) {
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS || fill.count == 0)
        return result;
    struct fill *f = malloc(sizeof *f);
    if (f == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *f = fill;
    struct work *w = work_new(fill_run, free, f);
    result = stream_queue(stream, w);
    if (result != CUDA_SUCCESS)
        work_release(w);
    return result;
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct fill f = {.dst = (uintptr_t)dst, .value = value, .count = bytes, .width = 1};
    return queue_fill(f, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t words, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (dst % 4 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct fill f = {.dst = (uintptr_t)dst, .value = value, .count = words, .width = 4};
    return queue_fill(f, stream);
}

struct call {
    CUhostFn work;
    void *data;
};

static void call_run(void *arg, int device) {
    struct call *c = arg;
    (void)device;
    in_host_function = true;
    c->work(c->data);
    in_host_function = false;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn work, void *data) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (work == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct call *c = result == CUDA_SUCCESS ? malloc(sizeof *c) : NULL;
    if (c == NULL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct call){.work = work, .data = data};
    struct work *w = work_new(call_run, free, c);
    result = stream_queue(stream, w);
    if (result != CUDA_SUCCESS)
        work_release(w);
    return result;
}
