/* The order of kernels of a communicator that are in graphs, with those that are not: as NCCL's, each
 * waits for an event that the one before has recorded. In one graph they are behind each other. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum { MAX_RECORDINGS = 16, MAX_TIPS = 64 };

/* A capture with kernels of the communicator. */
struct recording {
    struct recording *next;
    unsigned long long id;
    CUgraphNode tips[MAX_TIPS]; /* behind the latest of them */
    size_t count;
    CUgraphNode end; /* records the event behind the tips; NULL until there are some */
};

struct behind { /* what waits for the kernels that were launched before the first capture */
    struct comm *comm;
    uint64_t ticket;
};

static void behind_run(void *arg, int device) {
    struct behind *b = arg;
    (void)device;
    await_ticket(b->comm, b->ticket);
}

static void behind_drop(void *arg) {
    struct behind *b = arg;
    struct comm *c = b->comm;
    free(b);
    comm_count(c, &c->pending, -1);
}

/* Makes the event, and records it behind what was launched so far. */
static CUresult make_order(struct comm *c) {
    CUstream aside;
    CUresult result = cuStreamCreate(&aside, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS)
        return result;
    struct behind *b = calloc(1, sizeof *b);
    if (b == NULL)
        abort();
    pthread_mutex_lock(&c->lock);
    *b = (struct behind){c, c->tickets};
    pthread_mutex_unlock(&c->lock);
    comm_count(c, &c->pending, 1);
    result = softgpu_launch(aside, behind_run, behind_drop, b);
    if (result != CUDA_SUCCESS)
        behind_drop(b);
    else
        result = cuEventCreate(&c->order, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = cuEventRecord(c->order, aside);
    cuStreamDestroy_v2(aside);
    return result;
}

/* Finds the capture with a number, or notes it; the oldest of many is forgotten. */
static struct recording *recording_of(struct comm *c, unsigned long long id) {
    struct recording **at = &c->recordings;
    for (int n = 0; *at != NULL; n++, at = &(*at)->next) {
        if ((*at)->id == id)
            return *at;
        if (n == MAX_RECORDINGS) {
            free(*at);
            *at = NULL;
            break;
        }
    }
    struct recording *r = calloc(1, sizeof *r);
    if (r == NULL)
        abort();
    r->id = id;
    r->next = c->recordings;
    c->recordings = r;
    return r;
}

/* Makes what comes next on a stream wait for the kernel before it. */
CUresult order_enter(struct comm *c, CUstream stream, bool captured) {
    CUresult result = CUDA_SUCCESS;
    if (!captured)
        return c->order == NULL ? CUDA_SUCCESS : cuStreamWaitEvent(stream, c->order, 0);
    if (c->order == NULL)
        result = make_order(c);
    CUstreamCaptureStatus status;
    unsigned long long id;
    if (result == CUDA_SUCCESS)
        result = cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    struct recording *r = recording_of(c, id);
    if (r->end == NULL)
        return cuStreamWaitEvent(stream, c->order, CU_EVENT_WAIT_EXTERNAL);
    return cuStreamUpdateCaptureDependencies(stream, r->tips, r->count,
                                             CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

/* Changes on what the node that records the event depends. */
static CUresult move_end(struct recording *r, CUgraph graph, const CUgraphNode *tips,
                         size_t count) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < r->count && result == CUDA_SUCCESS; i++)
        result = cuGraphRemoveDependencies(graph, &r->tips[i], &r->end, 1);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuGraphAddDependencies(graph, &tips[i], &r->end, 1);
    return result;
}

/* Lets the next kernel wait for the one that the stream was given last. */
CUresult order_leave(struct comm *c, CUstream stream, bool captured) {
    if (!captured)
        return c->order == NULL ? CUDA_SUCCESS : cuEventRecord(c->order, stream);
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUgraph graph;
    const CUgraphNode *tips;
    size_t count;
    CUresult result = cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &tips, &count);
    if (result != CUDA_SUCCESS)
        return result;
    struct recording *r = recording_of(c, id);
    if (r->end == NULL)
        result = cuGraphAddEventRecordNode(&r->end, graph, tips, count, c->order);
    else
        result = move_end(r, graph, tips, count);
    memcpy(r->tips, tips, count * sizeof *tips);
    r->count = count;
    return result;
}

void order_close(struct comm *c) {
    while (c->recordings != NULL) {
        struct recording *r = c->recordings;
        c->recordings = r->next;
        free(r);
    }
    if (c->order != NULL)
        cuEventDestroy_v2(c->order);
}
