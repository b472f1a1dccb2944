/* Lazy loading. A kernel is loaded on a device at its first launch there, or by an explicit call.
 * With CUDA_MODULE_LOADING=LAZY, CUDA may delay the load while other kernels run. This driver
 * always delays it. */
#include <string.h>

#include "driver.h"
#include "launch.h"

/* Loads a kernel on a device. The caller holds the context's lock, which is released during the
 * wait. A launch that waits does not count as running, so two concurrent loads do not block each
 * other. */
static void load_locked(struct context *c, CUfunction function) {
    bool *loaded = &c->loaded[function - gpu_kernels];
    while (!*loaded && c->running > 0)
        pthread_cond_wait(&c->still, &c->lock);
    *loaded = true;
}

void kernel_begin(int device, CUfunction function) {
    struct context *c = context_of(device);
    pthread_mutex_lock(&c->lock);
    load_locked(c, function);
    c->running++;
    c->runs[function - gpu_kernels]++;
    pthread_mutex_unlock(&c->lock);
}

unsigned long softgpu_runs(const char *kernel) {
    unsigned long runs = 0;
    for (size_t i = 0; i < gpu_kernel_count; i++) {
        if (strcmp(gpu_kernels[i].name, kernel) != 0)
            continue;
        for (int device = 0; device < MAX_DEVICES; device++) {
            struct context *c = context_of(device);
            pthread_mutex_lock(&c->lock);
            runs += c->runs[i];
            pthread_mutex_unlock(&c->lock);
        }
    }
    return runs;
}

void softgpu_running(int device, int kernels) {
    struct context *c = context_of(device);
    pthread_mutex_lock(&c->lock);
    c->running += kernels;
    if (c->running == 0)
        pthread_cond_broadcast(&c->still);
    pthread_mutex_unlock(&c->lock);
}

CUresult cuFuncLoad(CUfunction function) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&current->lock);
    load_locked(current, function);
    pthread_mutex_unlock(&current->lock);
    return CUDA_SUCCESS;
}
