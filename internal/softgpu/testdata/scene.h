/* Functions that the test programs share: ranks as threads, memory in an arena, and checks that
 * print their line. A program returns 0 if all its checks pass. */
#ifndef SCENE_H
#define SCENE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

enum { MIB = 1 << 20, SEGMENT = 4 * MIB, RANKS = 3 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define EXPECT(code, call)                                                                         \
    do {                                                                                           \
        int got_ = (int)(call);                                                                    \
        if (got_ != (int)(code)) {                                                                 \
            fprintf(stderr, "%s:%d: %s returned %d (%s), not %d\n", __FILE__, __LINE__, #call,     \
                    got_, ncclGetLastError(NULL), (int)(code));                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define MUST(call) EXPECT(0, call)

/* A segment: a handle that is mapped at two addresses. */
struct segment {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at, alias;
};

struct rank {
    int number, ranks;
    CUcontext context;
    CUstream stream;
    ncclComm_t comm;
    struct segment segment;
    ncclWindow_t window;
    void *argument;
};

static inline CUdeviceptr map_segment(CUmemGenericAllocationHandle handle, size_t bytes) {
    CUdeviceptr at;
    MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    MUST(cuMemMap(at, bytes, 0, handle, 0));
    int devices;
    MUST(cuDeviceGetCount(&devices));
    for (int i = 0; i < devices; i++) {
        CUmemAccessDesc d = {{CU_MEM_LOCATION_TYPE_DEVICE, i}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        MUST(cuMemSetAccess(at, bytes, &d, 1));
    }
    return at;
}

static inline CUmemGenericAllocationHandle make_memory(int device, size_t bytes) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = 1};
    prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
    MUST(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static inline struct segment make_segment(int device, size_t bytes) {
    struct segment s = {.handle = make_memory(device, bytes)};
    s.at = map_segment(s.handle, bytes);
    s.alias = map_segment(s.handle, bytes);
    MUST(cuMemRelease(s.handle));
    return s;
}

static inline void free_segment(struct segment s, size_t bytes) {
    MUST(cuMemUnmap(s.at, bytes));
    MUST(cuMemUnmap(s.alias, bytes));
    MUST(cuMemAddressFree(s.at, bytes));
    MUST(cuMemAddressFree(s.alias, bytes));
}

static inline void open_rank(struct rank *r) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&r->context, r->number));
    MUST(cuCtxSetCurrent(r->context));
    MUST(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
    r->segment = make_segment(r->number, SEGMENT);
}

static inline void close_rank(struct rank *r) {
    if (r->window != NULL)
        MUST(ncclCommWindowDeregister(r->comm, r->window));
    if (r->comm != NULL)
        MUST(ncclCommDestroy(r->comm));
    free_segment(r->segment, SEGMENT);
    MUST(cuStreamDestroy_v2(r->stream));
    MUST(cuDevicePrimaryCtxRelease_v2(r->number));
}

static inline void sync_rank(struct rank *r) { MUST(cuStreamSynchronize(r->stream)); }

static inline void connect_rank(struct rank *r, ncclUniqueId *id) {
    MUST(ncclCommInitRankScalable(&r->comm, r->ranks, r->number, 1, id, NULL));
}

static inline void register_rank(struct rank *r) {
    void *at = (void *)(uintptr_t)r->segment.at;
    MUST(ncclCommWindowRegister(r->comm, at, SEGMENT, &r->window, NCCL_WIN_COLL_SYMMETRIC));
}

struct part {
    struct rank rank;
    ncclUniqueId *id;
    void (*play)(struct rank *);
    bool connected;
};

static inline void *play_part(void *arg) {
    struct part *p = (struct part *)arg;
    open_rank(&p->rank);
    if (p->connected)
        connect_rank(&p->rank, p->id);
    p->play(&p->rank);
    close_rank(&p->rank);
    return NULL;
}

/* Runs a scene with ranks as threads. All ranks get the same argument. */
static inline void play(int ranks, void (*scene)(struct rank *), void *argument) {
    ncclUniqueId id;
    pthread_t threads[16];
    struct part parts[16];
    MUST(ncclGetUniqueId(&id));
    for (int i = 0; i < ranks; i++) {
        struct rank r = {.number = i, .ranks = ranks, .argument = argument};
        parts[i] = (struct part){.rank = r, .id = &id, .play = scene, .connected = true};
        pthread_create(&threads[i], NULL, play_part, &parts[i]);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
}

#endif
