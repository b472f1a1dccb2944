/* Physical memory. Each allocation is a memfd, and counts against the memory of its device. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t used[MAX_DEVICES];
static pthread_mutex_t used_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t capacity(void) { return environment_size("SOFTGPU_MEMORY", (size_t)8 << 30); }

bool memory_take(int device, size_t bytes) {
    size_t all = capacity();
    pthread_mutex_lock(&used_lock);
    bool fits = bytes <= all && used[device] <= all - bytes;
    if (fits)
        used[device] += bytes;
    pthread_mutex_unlock(&used_lock);
    return fits;
}

void memory_give(int device, size_t bytes) {
    pthread_mutex_lock(&used_lock);
    used[device] -= bytes;
    pthread_mutex_unlock(&used_lock);
}

void memory_usage(int device, size_t *unused, size_t *total) {
    *total = capacity();
    pthread_mutex_lock(&used_lock);
    *unused = *total > used[device] ? *total - used[device] : 0;
    pthread_mutex_unlock(&used_lock);
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    memory_usage(current->device, unused, total);
    return CUDA_SUCCESS;
}

/* Fabric handles are supported if SOFTGPU_FABRIC is 1. */
static bool fabric(void) { return environment_size("SOFTGPU_FABRIC", 0) == 1; }

static CUresult check_prop(const CUmemAllocationProp *prop) {
    int known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (prop->requestedHandleTypes & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    /* The CUDA driver returns this error for fabric handles if there is no IMEX channel. */
    if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) && !fabric())
        return CUDA_ERROR_NOT_PERMITTED;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int kind) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (bytes == NULL || kind < 0 || kind > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult refused = check_prop(prop);
    if (refused != CUDA_SUCCESS && refused != CUDA_ERROR_NOT_PERMITTED)
        return refused;
    *bytes = GRANULARITY;
    return CUDA_SUCCESS;
}

static struct allocation *allocation_new(int fd, size_t bytes, int device) {
    struct allocation *a = calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    *a = (struct allocation){.references = 1, .fd = fd, .device = device, .bytes = bytes};
    handle_add(ALLOCATION, a);
    return a;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult refused = check_prop(prop);
    if (refused != CUDA_SUCCESS)
        return refused;
    if (handle == NULL || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!memory_take(prop->location.id, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = memfd_create("softgpu-memory", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        if (fd >= 0)
            close(fd);
        memory_give(prop->location.id, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct allocation *a = allocation_new(fd, bytes, prop->location.id);
    a->prop = *prop;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    return CUDA_SUCCESS;
}

void allocation_release_locked(struct allocation *a) {
    if (--a->references > 0)
        return;
    handle_remove(ALLOCATION, a);
    close(a->fd);
    if (a->device >= 0)
        memory_give(a->device, a->bytes);
    free(a);
}

static struct allocation *allocation_of(CUmemGenericAllocationHandle handle) {
    struct allocation *a = (struct allocation *)(uintptr_t)handle;
    return handle_live(ALLOCATION, a) ? a : NULL;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct allocation *a = allocation_of(handle);
    if (a == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&memory_lock);
    allocation_release_locked(a);
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct allocation *a = allocation_of(handle);
    if (a == NULL || prop == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = a->prop;
    return CUDA_SUCCESS;
}

/* The contents of a fabric handle: the process and descriptor of the memory, and its inode. */
struct fabric_handle {
    char magic[8];
    int pid, fd;
    unsigned long long file;
    char unused[40];
};
_Static_assert(sizeof(struct fabric_handle) == 64, "as CUmemFabricHandle");

static const char fabric_magic[8] = "SOFTGPU";

static CUresult export_fabric(struct fabric_handle *out, const struct allocation *a) {
    struct stat about;
    if (fstat(a->fd, &about) != 0)
        return CUDA_ERROR_UNKNOWN;
    *out = (struct fabric_handle){.pid = getpid(), .fd = a->fd, .file = about.st_ino};
    memcpy(out->magic, fabric_magic, sizeof fabric_magic);
    return CUDA_SUCCESS;
}

/* Opens the memory of a fabric handle, which may belong to another process. Returns -1 if it does
 * not exist. */
static int import_fabric(const struct fabric_handle *from) {
    char path[64];
    struct stat about;
    if (!fabric() || memcmp(from->magic, fabric_magic, sizeof fabric_magic) != 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", from->pid, from->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &about) != 0 || about.st_ino != from->file)) {
        close(fd);
        return -1;
    }
    return fd;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct allocation *a = allocation_of(handle);
    if (a == NULL || out == NULL || flags != 0 || (a->prop.requestedHandleTypes & type) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        return export_fabric(out, a);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_UNKNOWN;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

/* Returns a descriptor of the memory of a shared handle, or -1. */
static int import_descriptor(void *from, int type) {
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        return import_fabric(from);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return -1;
    return fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from,
                                        int type) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct stat about;
    int own = handle == NULL ? -1 : import_descriptor(from, type);
    if (own < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fstat(own, &about) != 0 || about.st_size <= 0 || about.st_size % GRANULARITY != 0) {
        close(own);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct allocation *a = allocation_new(own, (size_t)about.st_size, -1);
    a->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    a->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)a;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    ENTER(CUDA_ERROR_UNKNOWN);
    pthread_mutex_lock(&memory_lock);
    struct mapping *m = mapping_find_locked((uintptr_t)address);
    if (m != NULL) {
        m->allocation->references++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)m->allocation;
    }
    pthread_mutex_unlock(&memory_lock);
    return m != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
