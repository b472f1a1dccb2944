/* Memory without handles: device memory from cuMemAlloc, and pinned host memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

struct area {
    struct area *next;
    enum plain kind;
    int device;
    uintptr_t base;
    size_t bytes;
};

static struct area *areas;
static pthread_mutex_t areas_lock = PTHREAD_MUTEX_INITIALIZER;

static struct area *area_find_locked(uintptr_t at) {
    struct area *a = areas;
    while (a != NULL && (at < a->base || at - a->base >= a->bytes))
        a = a->next;
    return a;
}

enum plain plain_kind(uintptr_t at, uintptr_t *base, size_t *bytes) {
    enum plain kind = NOT_PLAIN;
    pthread_mutex_lock(&areas_lock);
    struct area *a = area_find_locked(at);
    if (a != NULL) {
        kind = a->kind;
        *base = a->base;
        *bytes = a->bytes;
    }
    pthread_mutex_unlock(&areas_lock);
    return kind;
}

static CUresult area_add(enum plain kind, int device, void *base, size_t bytes) {
    struct area *a = malloc(sizeof *a);
    if (a == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *a = (struct area){.kind = kind, .device = device, .base = (uintptr_t)base, .bytes = bytes};
    pthread_mutex_lock(&areas_lock);
    a->next = areas;
    areas = a;
    pthread_mutex_unlock(&areas_lock);
    return CUDA_SUCCESS;
}

static struct area *area_take(enum plain kind, uintptr_t base) {
    pthread_mutex_lock(&areas_lock);
    struct area **at = &areas;
    while (*at != NULL && ((*at)->base != base || (*at)->kind != kind))
        at = &(*at)->next;
    struct area *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&areas_lock);
    return found;
}

/* Allocates pages for an area. Pages of a device count against its memory. */
CUresult plain_new(enum plain kind, int device, size_t bytes, uintptr_t *base) {
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (kind == PLAIN_DEVICE && !memory_take(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (pages != MAP_FAILED && area_add(kind, device, pages, bytes) == CUDA_SUCCESS) {
        *base = (uintptr_t)pages;
        return CUDA_SUCCESS;
    }
    if (pages != MAP_FAILED)
        munmap(pages, bytes);
    if (kind == PLAIN_DEVICE)
        memory_give(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void area_free(struct area *a) {
    munmap((void *)a->base, a->bytes);
    if (a->kind == PLAIN_DEVICE)
        memory_give(a->device, a->bytes);
    free(a);
}

/* Frees memory of a device. Returns false if there is none at the address. */
bool plain_free(uintptr_t base) {
    struct area *a = area_take(PLAIN_DEVICE, base);
    if (a != NULL)
        area_free(a);
    return a != NULL;
}

/* Allocates memory for a call that captures forbid. */
static CUresult allocate(enum plain kind, size_t bytes, uintptr_t *base) {
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return plain_new(kind, current->device, bytes, base);
}

/* Frees memory for a call that captures forbid. Like the CUDA driver, it first waits for the
 * device. */
static CUresult deallocate(enum plain kind, uintptr_t base) {
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct area *a = area_take(kind, base);
    if (a == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    context_drain(a->device);
    area_free(a);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *base, size_t bytes) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    uintptr_t at = 0;
    CUresult result = allocate(PLAIN_DEVICE, bytes, &at);
    *base = at;
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr base) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return base == 0 ? CUDA_SUCCESS : deallocate(PLAIN_DEVICE, (uintptr_t)base);
}

CUresult cuMemAllocHost_v2(void **base, size_t bytes) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    uintptr_t at = 0;
    CUresult result = allocate(PLAIN_PINNED, bytes, &at);
    *base = (void *)at;
    return result;
}

CUresult cuMemHostAlloc(void **base, size_t bytes, unsigned flags) {
    return flags > 7 ? CUDA_ERROR_INVALID_VALUE : cuMemAllocHost_v2(base, bytes);
}

CUresult cuMemFreeHost(void *base) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return deallocate(PLAIN_PINNED, (uintptr_t)base);
}

CUresult cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    uintptr_t there;
    size_t size;
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (base == NULL || bytes == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (plain_kind((uintptr_t)base, &there, &size) != NOT_PLAIN)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return area_add(PLAIN_REGISTERED, current->device, base, bytes);
}

CUresult cuMemHostUnregister(void *base) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct area *a = area_take(PLAIN_REGISTERED, (uintptr_t)base);
    free(a);
    return a != NULL ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *base, unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    uintptr_t there;
    size_t size;
    if (flags != 0 || plain_kind((uintptr_t)base, &there, &size) < PLAIN_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}
