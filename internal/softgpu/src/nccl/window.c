/* Windows: memory of every rank that each rank maps. The n-th registration of one rank is paired
 * with the n-th registration of all other ranks, without further checks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm.h"

enum { ALIGNMENT = 4096 };

struct view { /* mapping of one rank's whole allocation */
    char *map;
    size_t bytes;
};

struct window {
    struct window *next;
    _Atomic int references; /* held by the registration and by calls */
    _Atomic bool live;
    bool symmetric; /* whether the window path can use it */
    char *user;
    size_t bytes;
    size_t offset; /* offset in this rank's allocation, assumed to be equal on all ranks */
    int ranks;
    struct view views[MAX_RANKS];
};

struct offer { /* data about a window that ranks exchange */
    int pid, fd;
    size_t allocation, window;
};

void window_keep(struct window *w) { atomic_fetch_add(&w->references, 1); }

void window_release(struct window *w) {
    if (w == NULL || atomic_fetch_sub(&w->references, 1) > 1)
        return;
    for (int r = 0; r < w->ranks; r++)
        if (w->views[r].map != NULL)
            munmap(w->views[r].map, w->views[r].bytes);
    free(w);
}

bool window_live(const struct window *w) { return atomic_load(&w->live); }

/* Returns the address in this process of an offset in a peer's window. */
char *window_at(const struct window *w, int rank, size_t offset) {
    return w->views[rank].map + w->offset + offset;
}

/* Reports whether a range of a window is backed by memory on every rank. */
bool window_covers(const struct window *w, size_t offset, size_t bytes) {
    for (int r = 0; r < w->ranks; r++)
        if (w->offset + offset + bytes > w->views[r].bytes)
            return false;
    return true;
}

/* Finds the window with the greatest base that is not above the address. It checks that the window
 * extends to the address, but not that it contains the whole buffer. */
struct window *window_find(struct comm *c, const void *address, size_t *offset) {
    const char *at = address;
    struct window *best = NULL;
    pthread_mutex_lock(&c->lock);
    for (struct window *w = c->windows; w != NULL; w = w->next)
        if (w->symmetric && w->user <= at && (best == NULL || w->user >= best->user))
            best = w;
    if (best != NULL && (size_t)(at - best->user) >= best->bytes)
        best = NULL;
    if (best != NULL)
        window_keep(best);
    pthread_mutex_unlock(&c->lock);
    if (best != NULL)
        *offset = (size_t)(at - best->user);
    return best;
}

static struct window *window_new(struct comm *c, void *buffer, size_t bytes) {
    struct window *w = calloc(1, sizeof *w);
    if (w == NULL)
        abort();
    atomic_init(&w->references, 1);
    atomic_init(&w->live, true);
    w->user = buffer;
    w->bytes = bytes;
    w->ranks = c->nranks;
    return w;
}

/* Appends a window to the list. The oldest windows are deregistered first. */
static void insert(struct comm *c, struct window *w) {
    pthread_mutex_lock(&c->lock);
    if (c->windows == NULL)
        c->windows_end = &c->windows;
    *c->windows_end = w;
    c->windows_end = &w->next;
    pthread_mutex_unlock(&c->lock);
}

/* Checks this rank's memory, and shares it with the peers. */
static ncclResult_t prepare(struct window *w, struct offer *o) {
    CUdeviceptr base, at = (CUdeviceptr)(uintptr_t)w->user;
    CUmemGenericAllocationHandle handle;
    size_t mapped;
    if (cuMemGetAddressRange_v2(&base, &mapped, at) != CUDA_SUCCESS ||
        cuMemRetainAllocationHandle(&handle, w->user) != CUDA_SUCCESS)
        return report(ncclUnhandledCudaError, "the window's memory has no allocation handle");
    w->offset = (size_t)(at - base);
    o->fd = -1;
    CUresult exported = cuMemExportToShareableHandle(&o->fd, handle, 1, 0);
    cuMemRelease(handle);
    if (exported != CUDA_SUCCESS)
        return report(ncclUnhandledCudaError, "exporting the window's memory: %d", (int)exported);
    o->pid = number_in_proc();
    o->allocation = mapped;
    o->window = w->bytes;
    int version = nccl_version();
    if (w->offset % ALIGNMENT != 0)
        return report(ncclInvalidArgument, "Window address must be suitably aligned.");
    if (version >= 22902 && version < 23003 && w->offset + w->bytes > mapped)
        return report(ncclInvalidArgument, "the window spans multiple physical segments");
    return ncclSuccess;
}

static ncclResult_t view(struct view *v, const struct offer *o) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", o->pid, o->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return report(ncclSystemError, "opening %s: %s", path, strerror(errno));
    void *map = mmap(NULL, o->allocation, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return report(ncclSystemError, "mapping a peer's memory: %s", strerror(errno));
    *v = (struct view){.map = map, .bytes = o->allocation};
    return ncclSuccess;
}

/* Exchanges the memory of all ranks. Returns when all ranks have mapped it. */
static ncclResult_t exchange(struct comm *c, struct window *w, const struct offer *own) {
    struct offer offers[MAX_RANKS];
    ncclResult_t results[MAX_RANKS], result = ncclSuccess;
    if (!comm_exchange(c, own, sizeof *own, offers))
        return report(ncclInternalError, "registering a window: aborted");
    for (int r = 0; r < c->nranks && nccl_version() < 23007; r++)
        if (offers[r].window != own->window || offers[r].allocation != own->allocation)
            return report(ncclUnhandledCudaError, "mapping a window of rank %d: not supported", r);
    for (int r = 0; r < c->nranks && result == ncclSuccess; r++)
        result = view(&w->views[r], &offers[r]);
    if (!comm_exchange(c, &result, sizeof result, results))
        return report(ncclInternalError, "registering a window: aborted");
    for (int r = 0; r < c->nranks && result == ncclSuccess; r++)
        result = results[r];
    return result;
}

/* Registers memory. This is collective unless the communicator does not use windows. */
ncclResult_t window_register(struct comm *c, void *buffer, size_t bytes, int flags,
                             struct window **out) {
    *out = NULL;
    if (!c->symmetric && !c->masked)
        return ncclSuccess;
    struct window *w = window_new(c, buffer, bytes);
    ncclResult_t result = ncclSuccess;
    w->symmetric = c->symmetric && (flags & NCCL_WIN_COLL_SYMMETRIC) != 0;
    if (w->symmetric) {
        struct offer own = {.fd = -1};
        result = prepare(w, &own);
        if (result == ncclSuccess)
            result = exchange(c, w, &own);
        if (own.fd >= 0)
            close(own.fd);
    }
    if (result != ncclSuccess) {
        window_release(w);
        return result;
    }
    insert(c, w);
    *out = w;
    return ncclSuccess;
}

static void window_end(struct window *w) {
    atomic_store(&w->live, false);
    window_release(w);
}

void windows_close(struct comm *c) {
    while (c->windows != NULL) {
        struct window *w = c->windows;
        c->windows = w->next;
        window_end(w);
    }
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes,
                                    ncclWindow_t *window, int flags) {
    INJECT();
    struct comm *c = comm_enter(comm);
    if (c == NULL || window == NULL)
        return group_note(report(ncclInvalidArgument, "ncclCommWindowRegister: bad argument"));
    ncclResult_t result = comm_ready(c);
    *window = NULL;
    if (result == ncclSuccess && (buffer == NULL || bytes == 0))
        result = report(ncclInvalidArgument, "ncclCommWindowRegister: no memory");
    /* Since 2.30.7, captures do not see the calls that NCCL makes here. */
    if (result == ncclSuccess && c->symmetric && nccl_version() < 23007 &&
        softgpu_guard() != CUDA_SUCCESS)
        result = report(ncclUnhandledCudaError,
                        "Cuda failure 'operation not permitted when stream is capturing'");
    if (result == ncclSuccess)
        result = group_add((struct task){.comm = c, .kind = REGISTER, .buffer = buffer,
                                         .bytes = bytes, .flags = flags, .window = window});
    else
        group_note(result);
    comm_leave(c);
    return result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    INJECT();
    if (window == NULL)
        return ncclSuccess;
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "ncclCommWindowDeregister: no communicator");
    pthread_mutex_lock(&c->lock);
    struct window **at = &c->windows;
    while (*at != NULL && *at != window)
        at = &(*at)->next;
    bool found = *at != NULL;
    if (found)
        *at = window->next;
    if (found && *at == NULL)
        c->windows_end = at;
    pthread_mutex_unlock(&c->lock);
    if (found)
        window_end(window);
    comm_leave(c);
    return found ? ncclSuccess : report(ncclInvalidArgument, "this is no window");
}
