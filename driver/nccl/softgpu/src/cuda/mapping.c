/* Virtual memory: reserved ranges, and allocations mapped in them. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

struct reservation {
    struct reservation *next;
    uintptr_t base;
    size_t bytes;
};

static struct reservation *reservations;
static struct mapping *mappings;

static bool inside(uintptr_t at, size_t bytes, uintptr_t base, size_t room) {
    return at >= base && at - base <= room && bytes <= room - (at - base);
}

static struct reservation *reservation_find_locked(uintptr_t at, size_t bytes) {
    struct reservation *r = reservations;
    while (r != NULL && !inside(at, bytes, r->base, r->bytes))
        r = r->next;
    return r;
}

struct mapping *mapping_find_locked(uintptr_t at) {
    struct mapping *m = mappings;
    while (m != NULL && !inside(at, 1, m->base, m->bytes))
        m = m->next;
    return m;
}

static bool mapping_overlaps_locked(uintptr_t at, size_t bytes) {
    for (struct mapping *m = mappings; m != NULL; m = m->next)
        if (at < m->base + m->bytes && m->base < at + bytes)
            return true;
    return false;
}

/* Tells where a range lies, for work of a device: all mapped with access, or at addresses of
 * devices that it may not touch, or elsewhere. */
enum place mapping_place(uintptr_t at, size_t bytes, int device) {
    enum place place = ELSEWHERE;
    pthread_mutex_lock(&memory_lock);
    if (reservation_find_locked(at, 1) != NULL) {
        uintptr_t end = at + bytes;
        struct mapping *m;
        while (at < end && (m = mapping_find_locked(at)) != NULL && (m->access >> device & 1))
            at = m->base + m->bytes;
        place = at < end ? FORBIDDEN : MAPPED;
    }
    pthread_mutex_unlock(&memory_lock);
    return place;
}

/* Takes addresses at the wish, if they are unused, or anywhere. */
static void *reserve(uintptr_t wish, size_t bytes, size_t alignment) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (wish != 0 && wish % alignment == 0) {
        void *there = mmap((void *)wish, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (there == (void *)wish)
            return there;
        if (there != MAP_FAILED)
            munmap(there, bytes);
    }
    char *wide = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
    if (wide == MAP_FAILED)
        return NULL;
    size_t head = (alignment - (uintptr_t)wide % alignment) % alignment;
    if (head > 0)
        munmap(wide, head);
    munmap(wide + head + bytes, alignment - head);
    return wide + head;
}

CUresult cuMemAddressReserve(CUdeviceptr *base, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (alignment < GRANULARITY && (alignment & (alignment - 1)) == 0)
        alignment = GRANULARITY;
    if (base == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *r = malloc(sizeof *r);
    void *taken = r != NULL ? reserve((uintptr_t)wish, bytes, alignment) : NULL;
    if (taken == NULL) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&memory_lock);
    *r = (struct reservation){.next = reservations, .base = (uintptr_t)taken, .bytes = bytes};
    reservations = r;
    pthread_mutex_unlock(&memory_lock);
    *base = (CUdeviceptr)(uintptr_t)taken;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    struct reservation **at = &reservations;
    while (*at != NULL && (*at)->base != base)
        at = &(*at)->next;
    struct reservation *found = *at;
    if (found != NULL && found->bytes == bytes && !mapping_overlaps_locked(base, bytes)) {
        *at = found->next;
        munmap((void *)found->base, bytes);
        free(found);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static CUresult map_locked(uintptr_t base, size_t bytes, struct allocation *a) {
    if (reservation_find_locked(base, bytes) == NULL || mapping_overlaps_locked(base, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *m = calloc(1, sizeof *m);
    void *there = mmap((void *)base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0);
    if (m == NULL || there == MAP_FAILED) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->references++;
    *m = (struct mapping){.next = mappings, .base = base, .bytes = bytes, .allocation = a};
    mappings = m;
    return CUDA_SUCCESS;
}

/* As with CUDA, the offset into the allocation must be zero. */
CUresult cuMemMap(CUdeviceptr base, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    struct allocation *a = (struct allocation *)(uintptr_t)handle;
    if (!handle_live(ALLOCATION, a) || offset != 0 || flags != 0 || bytes == 0 ||
        bytes % GRANULARITY != 0 || base % GRANULARITY != 0 || bytes > a->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    CUresult result = map_locked((uintptr_t)base, bytes, a);
    pthread_mutex_unlock(&memory_lock);
    return result;
}

/* Tells whether a range consists of whole mappings. */
static bool whole_locked(uintptr_t base, size_t bytes) {
    uintptr_t at = base;
    while (at < base + bytes) {
        struct mapping *m = mapping_find_locked(at);
        if (m == NULL || m->base != at)
            return false;
        at += m->bytes;
    }
    return bytes > 0 && at == base + bytes;
}

static void unmap_locked(uintptr_t base, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap((void *)base, bytes, PROT_NONE, flags, -1, 0);
    for (struct mapping **at = &mappings; *at != NULL;) {
        struct mapping *m = *at;
        if (!inside(m->base, m->bytes, base, bytes)) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        allocation_release_locked(m->allocation);
        free(m);
    }
}

CUresult cuMemUnmap(CUdeviceptr base, size_t bytes) {
    ENTER(CUDA_ERROR_UNKNOWN);
    pthread_mutex_lock(&memory_lock);
    bool whole = whole_locked((uintptr_t)base, bytes);
    if (whole)
        unmap_locked((uintptr_t)base, bytes);
    pthread_mutex_unlock(&memory_lock);
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void set_access_locked(struct mapping *m, const CUmemAccessDesc *d, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (d[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            m->access |= (uint64_t)1 << d[i].location.id;
        else
            m->access &= ~((uint64_t)1 << d[i].location.id);
    mprotect((void *)m->base, m->bytes, m->access != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Read-only access is refused: the driver does not offer it for device memory either. */
CUresult cuMemSetAccess(CUdeviceptr base, size_t bytes, const CUmemAccessDesc *descs,
                        size_t count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (descs == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (descs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            (descs[i].flags != 0 && descs[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return CUDA_ERROR_INVALID_VALUE;
        if (!device_valid(descs[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&memory_lock);
    bool whole = whole_locked((uintptr_t)base, bytes);
    for (struct mapping *m = mappings; whole && m != NULL; m = m->next)
        if (inside(m->base, m->bytes, (uintptr_t)base, bytes))
            set_access_locked(m, descs, count);
    pthread_mutex_unlock(&memory_lock);
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *at, CUdeviceptr base) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (flags == NULL || at == NULL || at->type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !device_valid(at->id))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    struct mapping *m = mapping_find_locked((uintptr_t)base);
    if (m != NULL)
        *flags = (m->access >> at->id & 1) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
    pthread_mutex_unlock(&memory_lock);
    return m != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    ENTER(CUDA_ERROR_UNKNOWN);
    uintptr_t start = 0;
    size_t size = 0;
    pthread_mutex_lock(&memory_lock);
    struct mapping *m = mapping_find_locked((uintptr_t)address);
    if (m != NULL) {
        start = m->base;
        size = m->bytes;
    }
    pthread_mutex_unlock(&memory_lock);
    if (m == NULL && plain_kind((uintptr_t)address, &start, &size) == NOT_PLAIN)
        return CUDA_ERROR_INVALID_VALUE;
    if (base != NULL)
        *base = start;
    if (bytes != NULL)
        *bytes = size;
    return CUDA_SUCCESS;
}
