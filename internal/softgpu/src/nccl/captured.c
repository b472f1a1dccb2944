/* Output buffers of captured calls on the plain path. As in NCCL, a communicator maps their memory
 * on other ranks when it captures a call, and reuses the mapping for later calls at the same
 * addresses. It releases the memory of destroyed graphs only in every 11th group of calls. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum { GROUPS_PER_RELEASE = 11 };

struct captured {
    struct captured *next;
    uintptr_t base;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
    int kernels; /* in graphs, until released */
    int dropped; /* of these, kernels in destroyed graphs */
};

static struct captured *find_locked(struct comm *c, uintptr_t base, size_t bytes) {
    struct captured *m = c->captured;
    while (m != NULL && (base < m->base || base + bytes > m->base + m->bytes))
        m = m->next;
    return m;
}

/* Keeps a buffer's memory for a kernel in a graph. Returns NULL if other ranks cannot map it. */
struct captured *captured_keep(struct comm *c, const void *buffer) {
    const char *wanted = getenv("NCCL_GRAPH_REGISTER");
    uintptr_t base = 0;
    size_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    if (c->nranks == 1 || (wanted != NULL && strcmp(wanted, "0") == 0) ||
        cuMemGetAddressRange_v2((CUdeviceptr *)&base, &bytes, (CUdeviceptr)buffer) !=
            CUDA_SUCCESS ||
        cuMemRetainAllocationHandle(&handle, (void *)base) != CUDA_SUCCESS)
        return NULL;
    pthread_mutex_lock(&c->lock);
    struct captured *m = find_locked(c, base, bytes);
    if (m == NULL) {
        m = calloc(1, sizeof *m);
        if (m == NULL)
            abort();
        *m = (struct captured){.next = c->captured, .base = base, .bytes = bytes, .handle = handle};
        c->captured = m;
        handle = 0;
    }
    m->kernels++;
    pthread_mutex_unlock(&c->lock);
    if (handle != 0)
        cuMemRelease(handle);
    return m;
}

/* Notes that the graph of a kernel has been destroyed. */
void captured_drop(struct comm *c, struct captured *m) {
    pthread_mutex_lock(&c->lock);
    m->dropped++;
    pthread_mutex_unlock(&c->lock);
}

/* Reports whether other memory has been mapped at the buffer's address since it was captured. */
bool captured_is_stale(const struct captured *m, const void *buffer) {
    CUmemGenericAllocationHandle handle = 0;
    if (cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)buffer) != CUDA_SUCCESS)
        return true;
    cuMemRelease(handle);
    return handle != m->handle;
}

static void release_unused(struct comm *c, bool all) {
    struct captured *unused = NULL;
    pthread_mutex_lock(&c->lock);
    for (struct captured **at = &c->captured; *at != NULL;) {
        struct captured *m = *at;
        m->kernels -= m->dropped;
        m->dropped = 0;
        if (m->kernels > 0 && !all) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->next = unused;
        unused = m;
    }
    pthread_mutex_unlock(&c->lock);
    while (unused != NULL) {
        struct captured *m = unused;
        unused = m->next;
        cuMemRelease(m->handle);
        free(m);
    }
}

/* Counts a group of calls, and releases unused memory in every 11th one. */
void captured_group_ended(struct comm *c) {
    pthread_mutex_lock(&c->lock);
    bool due = ++c->groups % GROUPS_PER_RELEASE == 0;
    pthread_mutex_unlock(&c->lock);
    if (due)
        release_unused(c, false);
}

void captured_close(struct comm *c) { release_unused(c, true); }
