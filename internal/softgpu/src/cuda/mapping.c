/* Virtual memory: reserved ranges, and allocations mapped in them. */
#define _GNU_SOURCE
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

/* Trees of reservations, which are ranges, and of mappings, which begin with a range. The ranges in
 * a tree do not overlap. The comparison treats overlapping ranges as equal, so a search finds the
 * entry that overlaps a range. */
static void *reservations, *mappings;

static int compare(const void *left, const void *right) {
    const struct range *a = left, *b = right;
    if (a->base + a->bytes <= b->base)
        return -1;
    return b->base + b->bytes <= a->base;
}

static void *find(void *const *tree, uintptr_t at, size_t bytes) {
    struct range key = {at, bytes};
    void *const *node = tfind(&key, tree, compare);
    return node != NULL ? *node : NULL;
}

static bool inside(uintptr_t at, size_t bytes, const struct range *r) {
    return at >= r->base && at - r->base <= r->bytes && bytes <= r->bytes - (at - r->base);
}

static struct range *reservation_find_locked(uintptr_t at, size_t bytes) {
    struct range *r = find(&reservations, at, 1);
    return r != NULL && inside(at, bytes, r) ? r : NULL;
}

struct mapping *mapping_find_locked(uintptr_t at) { return find(&mappings, at, 1); }

/* Classifies a range for an access by a device: mapped with access, at device addresses that it may
 * not access, or elsewhere. */
enum place mapping_place(uintptr_t at, size_t bytes, int device) {
    enum place place = ELSEWHERE;
    pthread_mutex_lock(&memory_lock);
    if (reservation_find_locked(at, 1) != NULL) {
        uintptr_t end = at + bytes;
        struct mapping *m;
        while (at < end && (m = mapping_find_locked(at)) != NULL && (m->access >> device & 1))
            at = m->at.base + m->at.bytes;
        place = at < end ? FORBIDDEN : MAPPED;
    }
    pthread_mutex_unlock(&memory_lock);
    return place;
}

/* Reserves addresses, at the wish if they are unused and anywhere otherwise. */
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

static void insert(void **tree, void *range) {
    if (tsearch(range, tree, compare) == NULL)
        abort();
}

CUresult cuMemAddressReserve(CUdeviceptr *base, size_t bytes, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (alignment < GRANULARITY && (alignment & (alignment - 1)) == 0)
        alignment = GRANULARITY;
    if (base == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct range *r = malloc(sizeof *r);
    void *taken = r != NULL ? reserve((uintptr_t)wish, bytes, alignment) : NULL;
    if (taken == NULL) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *r = (struct range){(uintptr_t)taken, bytes};
    pthread_mutex_lock(&memory_lock);
    insert(&reservations, r);
    pthread_mutex_unlock(&memory_lock);
    *base = (CUdeviceptr)(uintptr_t)taken;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    struct range *found = find(&reservations, base, 1);
    if (found != NULL && found->base == base && found->bytes == bytes &&
        find(&mappings, base, bytes) == NULL) {
        tdelete(found, &reservations, compare);
        munmap((void *)found->base, bytes);
        free(found);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&memory_lock);
    return result;
}

static CUresult map_locked(uintptr_t base, size_t bytes, struct allocation *a) {
    if (reservation_find_locked(base, bytes) == NULL || find(&mappings, base, bytes) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *m = calloc(1, sizeof *m);
    void *there = mmap((void *)base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0);
    if (m == NULL || there == MAP_FAILED) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->references++;
    *m = (struct mapping){.at = {base, bytes}, .allocation = a};
    insert(&mappings, m);
    return CUDA_SUCCESS;
}

/* Maps an allocation. As with CUDA, the offset into it must be zero. */
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

/* Reports whether a range consists of whole mappings. */
static bool whole_locked(uintptr_t base, size_t bytes) {
    uintptr_t at = base;
    while (at < base + bytes) {
        struct mapping *m = mapping_find_locked(at);
        if (m == NULL || m->at.base != at)
            return false;
        at += m->at.bytes;
    }
    return bytes > 0 && at == base + bytes;
}

static void unmap_locked(uintptr_t base, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap((void *)base, bytes, PROT_NONE, flags, -1, 0);
    for (struct mapping *m; (m = find(&mappings, base, bytes)) != NULL; free(m)) {
        tdelete(m, &mappings, compare);
        allocation_release_locked(m->allocation);
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
    mprotect((void *)m->at.base, m->at.bytes, m->access != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Sets the access of a device. Read-only access is refused, because the CUDA driver does not
 * support it for device memory either. */
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
    for (uintptr_t at = (uintptr_t)base; whole && at < base + bytes;) {
        struct mapping *m = mapping_find_locked(at);
        set_access_locked(m, descs, count);
        at += m->at.bytes;
    }
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
        start = m->at.base;
        size = m->at.bytes;
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
