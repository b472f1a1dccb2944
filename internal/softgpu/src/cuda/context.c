/* Primary contexts. Each device has one. A thread has a current context. */
#include <stdlib.h>

#include "../gpu/lane.h"
#include "driver.h"

static struct context contexts[MAX_DEVICES];
static pthread_once_t contexts_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t retained_lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local struct context *current;

static void make_contexts(void) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        contexts[i].device = i;
        pthread_mutex_init(&contexts[i].lock, NULL);
        pthread_cond_init(&contexts[i].idle, NULL);
        pthread_cond_init(&contexts[i].still, NULL);
        pthread_cond_init(&contexts[i].freed, NULL);
        contexts[i].loaded = calloc(gpu_kernel_count, sizeof(bool));
        contexts[i].runs = calloc(gpu_kernel_count, sizeof(unsigned long));
        if (contexts[i].loaded == NULL || contexts[i].runs == NULL)
            abort();
    }
}

struct context *context_of(int device) {
    pthread_once(&contexts_once, make_contexts);
    return &contexts[device];
}

/* Changes the number of pending works. works is positive for queued works and negative for
 * completed ones. */
void context_add(int device, long works) {
    struct context *c = context_of(device);
    pthread_mutex_lock(&c->lock);
    c->pending += works;
    if (c->pending == 0)
        pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->lock);
}

void context_drain(int device) {
    struct context *c = context_of(device);
    pthread_mutex_lock(&c->lock);
    while (c->pending > 0)
        pthread_cond_wait(&c->idle, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void softgpu_free(void) {
    struct context *c = current;
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    atomic_fetch_add(&c->freeing, 1);
    while (c->pending > 0)
        pthread_cond_wait(&c->idle, &c->lock);
    atomic_fetch_sub(&c->freeing, 1);
    pthread_cond_broadcast(&c->freed);
    pthread_mutex_unlock(&c->lock);
}

/* Blocks a call while another thread frees memory of its context. */
void context_await_frees(void) {
    struct context *c = current;
    if (c == NULL || atomic_load(&c->freeing) == 0)
        return;
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->freeing) > 0)
        pthread_cond_wait(&c->freed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void softgpu_fault(int device, CUresult code) {
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&context_of(device)->error, &none, (int)code);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *context = context_of(device);
    pthread_mutex_lock(&retained_lock);
    (*context)->retained++;
    pthread_mutex_unlock(&retained_lock);
    return CUDA_SUCCESS;
}

/* Releases a context. The last release resets the error, because the next Retain creates a new
 * context. */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct context *c = context_of(device);
    pthread_mutex_lock(&retained_lock);
    bool held = c->retained > 0;
    if (held && --c->retained == 0)
        atomic_store(&c->error, CUDA_SUCCESS);
    pthread_mutex_unlock(&retained_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&retained_lock);
    *active = context_of(device)->retained > 0;
    pthread_mutex_unlock(&retained_lock);
    *flags = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (context != NULL && (context < contexts || context >= contexts + MAX_DEVICES))
        return CUDA_ERROR_INVALID_CONTEXT;
    current = context;
    ASK(CUDA_ERROR_UNKNOWN);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    ASK(CUDA_ERROR_UNKNOWN);
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    ASK(CUDA_ERROR_UNKNOWN);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    context_drain(current->device);
    return (CUresult)atomic_load(&current->error);
}
