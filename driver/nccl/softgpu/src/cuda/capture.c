/* Captures: streams whose work is recorded into a graph. A capture begins on one stream, its
 * origin; others join by waiting for its events and must be waited for before it ends. Which work
 * a stream waits for is a frontier: the number of nodes of each stream that come before. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct capture {
    struct capture *next;
    unsigned long long id;
    CUstreamCaptureMode mode;
    pthread_t owner;
    bool spoiled;
    struct graph *graph;
    int lanes;
    struct stream *streams[MAX_LANES]; /* streams[0] is the origin */
    struct frontier reached[MAX_LANES];
};

pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static unsigned long long last_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Tells whether a capture stands in the way of an unsafe call of this thread. */
static bool forbids(const struct capture *c) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (pthread_equal(c->owner, pthread_self()))
        return true;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* As forbids for all captures; those in the way are lost. */
bool capture_forbids(void) {
    bool forbidden = false;
    pthread_mutex_lock(&capture_lock);
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (forbids(c)) {
            c->spoiled = true;
            forbidden = true;
        }
    pthread_mutex_unlock(&capture_lock);
    return forbidden;
}

CUresult softgpu_guard(void) {
    return capture_forbids() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static void join_locked(struct capture *c, struct stream *s) {
    s->capture = c;
    s->lane = c->lanes;
    c->streams[c->lanes] = s;
    c->lanes++;
    memset(&c->reached[s->lane], 0, sizeof c->reached[0]);
    c->reached[s->lane].capture = c->id;
}

CUresult capture_add_locked(struct stream *s, struct work *w) {
    struct capture *c = s->capture;
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    graph_add(c->graph, w);
    c->reached[s->lane].nodes[s->lane]++;
    return CUDA_SUCCESS;
}

void capture_reached_locked(const struct stream *s, struct frontier *reached) {
    *reached = s->capture->reached[s->lane];
}

static struct capture *find_locked(unsigned long long id) {
    struct capture *c = captures;
    while (c != NULL && c->id != id)
        c = c->next;
    return c;
}

void capture_spoil_locked(unsigned long long id) {
    struct capture *c = find_locked(id);
    if (c != NULL)
        c->spoiled = true;
}

static CUresult spoil_both_locked(struct capture *a, struct capture *b, CUresult why) {
    if (a != NULL)
        a->spoiled = true;
    if (b != NULL)
        b->spoiled = true;
    return why;
}

/* Makes the stream wait for captured work, which may draw it into that capture. */
CUresult capture_wait_locked(struct stream *s, const struct frontier *reached) {
    struct capture *c = find_locked(reached->capture);
    if (c == NULL && s->capture != NULL)
        return spoil_both_locked(s->capture, NULL, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (c == NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (s->capture != NULL && s->capture != c)
        return spoil_both_locked(s->capture, c, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->capture == NULL && c->lanes == MAX_LANES)
        return spoil_both_locked(c, NULL, CUDA_ERROR_NOT_SUPPORTED);
    if (s->capture == NULL)
        join_locked(c, s);
    unsigned *own = c->reached[s->lane].nodes;
    for (int i = 0; i < MAX_LANES; i++)
        if (own[i] < reached->nodes[i])
            own[i] = reached->nodes[i];
    return CUDA_SUCCESS;
}

/* Tells whether the origin waits for all work of the streams that joined. */
static bool joined(const struct capture *c) {
    for (int i = 1; i < c->lanes; i++)
        if (c->reached[0].nodes[i] < c->reached[i].nodes[i])
            return false;
    return true;
}

static void end_locked(struct capture *c) {
    struct capture **at = &captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    for (int i = 0; i < c->lanes; i++)
        if (c->streams[i] != NULL)
            c->streams[i]->capture = NULL;
}

/* A stream that is destroyed takes the capture with it. */
void capture_leave(struct stream *s) {
    struct capture *ended = NULL;
    pthread_mutex_lock(&capture_lock);
    struct capture *c = s->capture;
    if (c != NULL) {
        c->spoiled = true;
        c->streams[s->lane] = NULL;
        s->capture = NULL;
        if (s->lane == 0) {
            end_locked(c);
            ended = c;
        }
    }
    pthread_mutex_unlock(&capture_lock);
    if (ended != NULL)
        graph_free(ended->graph);
    free(ended);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if ((uintptr_t)stream <= 2)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream_check(stream);
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    struct capture *c = calloc(1, sizeof *c);
    if (c == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->mode = mode;
    c->owner = pthread_self();
    pthread_mutex_lock(&capture_lock);
    bool nested = stream->capture != NULL;
    if (!nested) {
        c->id = ++last_id;
        c->graph = graph_new();
        c->next = captures;
        captures = c;
        join_locked(c, stream);
    }
    pthread_mutex_unlock(&capture_lock);
    if (nested)
        free(c);
    return nested ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

static CUresult check_end_locked(const struct stream *s) {
    const struct capture *c = s->capture;
    if (c == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (c->streams[0] != s)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->owner, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    ENTER(CUDA_ERROR_UNKNOWN);
    stream_check(stream);
    *graph = NULL;
    pthread_mutex_lock(&capture_lock);
    CUresult result = check_end_locked(stream);
    struct capture *c = stream->capture;
    if (result == CUDA_SUCCESS) {
        if (c->spoiled)
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        else if (!joined(c))
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        end_locked(c);
    } else {
        c = NULL;
    }
    pthread_mutex_unlock(&capture_lock);
    if (c != NULL && result != CUDA_SUCCESS)
        graph_free(c->graph);
    else if (c != NULL) {
        handle_add(GRAPH, c->graph);
        *graph = c->graph;
    }
    free(c);
    return result;
}

static CUstreamCaptureStatus status_of(CUstream s, unsigned long long *id, CUgraph *graph) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    pthread_mutex_lock(&capture_lock);
    if (s->capture != NULL) {
        status = s->capture->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
        *id = s->capture->id;
        *graph = s->capture->graph;
    }
    pthread_mutex_unlock(&capture_lock);
    return status;
}

/* Looks at a stream; none never captures. */
static CUresult inspect(CUstream s, CUstreamCaptureStatus *status, unsigned long long *id,
                        CUgraph *graph) {
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if ((uintptr_t)s <= 2)
        return CUDA_SUCCESS;
    stream_check(s);
    *status = status_of(s, id, graph);
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    unsigned long long id;
    CUgraph graph;
    ENTER(CUDA_ERROR_UNKNOWN);
    return inspect(stream, status, &id, &graph);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                   unsigned long long *id, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    unsigned long long found = 0;
    CUgraph into = NULL;
    CUresult result = inspect(stream, status, &found, &into);
    if (id != NULL)
        *id = found;
    if (graph != NULL)
        *graph = into;
    if (nodes != NULL)
        *nodes = NULL;
    if (count != NULL)
        *count = 0;
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                   unsigned long long *id, CUgraph *graph,
                                   const CUgraphNode **nodes, const void **edges, size_t *count) {
    if (edges != NULL)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

CUresult softgpu_capturing(CUstream stream, int *capturing) {
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUgraph graph;
    CUresult result = inspect(stream, &status, &id, &graph);
    *capturing = result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
    return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
