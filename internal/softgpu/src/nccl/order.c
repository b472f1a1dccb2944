/* The order of kernels in graphs and outside of graphs. As in NCCL, each kernel of a communicator
 * waits for an event that the previous kernel has recorded. Within one graph the kernels depend on
 * each other. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum { MAX_RECORDINGS = 16, MAX_TIPS = 64 };

/* A capture that contains kernels of the communicator. */
struct recording {
    struct recording *next;
    unsigned long long id;
    CUgraphNode tips[MAX_TIPS]; /* latest nodes of the communicator's kernels */
    size_t count;
    CUgraphNode end; /* node that records the event after the tips, or NULL */
};

struct behind { /* work that waits for kernels launched before the first capture */
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

/* Creates the event, and records it after all earlier kernels. */
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

/* Finds the capture with an id, or adds it. If there are too many, the oldest is dropped. */
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

/* Makes the next kernel of a stream wait for the previous kernel of the communicator. */
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

/* Changes the dependencies of the node that records the event. */
static CUresult move_end(struct recording *r, CUgraph graph, const CUgraphNode *tips,
                         size_t count) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < r->count && result == CUDA_SUCCESS; i++)
        result = cuGraphRemoveDependencies(graph, &r->tips[i], &r->end, 1);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuGraphAddDependencies(graph, &tips[i], &r->end, 1);
    return result;
}

/* Records the event after a kernel that was launched on the stream. */
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
