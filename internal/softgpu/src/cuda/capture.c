/* Captures: the work of streams is recorded into a graph. A capture begins on one stream, its
 * origin. Other streams join when they wait for an event of the capture, and the origin must wait
 * for them before the capture ends. The work that a stream waits for is a frontier: a set of nodes
 * that do not depend on each other. */
#include <stdlib.h>

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

/* Reports whether a capture forbids an unsafe call of this thread. */
static bool forbids(const struct capture *c) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (pthread_equal(c->owner, pthread_self()))
        return true;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* Reports whether any capture forbids the call, and invalidates those that do. */
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
    c->reached[s->lane] = (struct frontier){.capture = c->id};
}

CUresult capture_add_locked(struct stream *s, struct work *w) {
    struct capture *c = s->capture;
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct frontier *at = &c->reached[s->lane];
    at->tips[0] = graph_add(c->graph, w, at->tips, at->count);
    at->count = 1;
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

/* Adds a node to a frontier, unless the frontier already depends on it. Returns false if the
 * frontier is full. */
static bool extend(struct frontier *f, struct node *n) {
    size_t kept = 0;
    for (size_t i = 0; i < f->count; i++)
        if (node_behind(f->tips[i], n))
            return true;
    for (size_t i = 0; i < f->count; i++)
        if (!node_behind(n, f->tips[i]))
            f->tips[kept++] = f->tips[i];
    f->count = kept;
    if (kept == MAX_TIPS)
        return false;
    f->tips[f->count++] = n;
    return true;
}

/* Makes the stream wait for captured work. The stream may join the capture by this. */
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
    for (size_t i = 0; i < reached->count; i++)
        if (!extend(&c->reached[s->lane], reached->tips[i]))
            return spoil_both_locked(c, NULL, CUDA_ERROR_NOT_SUPPORTED);
    return CUDA_SUCCESS;
}

/* Reports whether the origin waits for all work of the streams that have joined. */
static bool joined(const struct capture *c) {
    const struct frontier *origin = &c->reached[0];
    for (int i = 1; i < c->lanes; i++)
        for (size_t k = 0; k < c->reached[i].count; k++) {
            size_t at = 0;
            while (at < origin->count && !node_behind(origin->tips[at], c->reached[i].tips[k]))
                at++;
            if (at == origin->count)
                return false;
        }
    return true;
}

/* Frees the graph of an invalidated capture. */
static void lose(struct graph *g) {
    handle_remove(GRAPH, g);
    graph_free(g);
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

/* Removes a stream that is destroyed, and invalidates its capture. */
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
        lose(ended->graph);
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
        c->graph->capturing = true;
        handle_add(GRAPH, c->graph);
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
        c->graph->capturing = false;
    } else {
        c = NULL;
    }
    pthread_mutex_unlock(&capture_lock);
    if (c != NULL && result != CUDA_SUCCESS)
        lose(c->graph);
    else if (c != NULL)
        *graph = c->graph;
    free(c);
    return result;
}

/* The state of a stream's capture. */
struct found {
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUgraph graph;
    const struct frontier *at;
};

static void find_capture(CUstream s, struct found *f) {
    pthread_mutex_lock(&capture_lock);
    struct capture *c = s->capture;
    if (c != NULL)
        *f = (struct found){
            c->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE,
            c->id, c->graph, &c->reached[s->lane]};
    pthread_mutex_unlock(&capture_lock);
}

/* Finds the capture state of a stream. The default streams are never captured. */
static CUresult inspect(CUstream s, CUstreamCaptureStatus *status, struct found *f) {
    *f = (struct found){.status = CU_STREAM_CAPTURE_STATUS_NONE};
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((uintptr_t)s > 2) {
        stream_check(s);
        find_capture(s, f);
    }
    *status = f->status;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    struct found f;
    ENTER(CUDA_ERROR_UNKNOWN);
    return inspect(stream, status, &f);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                   unsigned long long *id, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct found f;
    CUresult result = inspect(stream, status, &f);
    if (id != NULL)
        *id = f.id;
    if (graph != NULL)
        *graph = f.graph;
    if (nodes != NULL)
        *nodes = f.at != NULL ? f.at->tips : NULL;
    if (count != NULL)
        *count = f.at != NULL ? f.at->count : 0;
    return result;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                   unsigned long long *id, CUgraph *graph,
                                   const CUgraphNode **nodes, const void **edges, size_t *count) {
    if (edges != NULL)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

static CUresult update_locked(struct capture *c, struct frontier *f, CUgraphNode *nodes,
                              size_t count, unsigned flags) {
    for (size_t i = 0; i < count; i++)
        if (!node_of(c->graph, nodes[i]))
            return CUDA_ERROR_INVALID_VALUE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        f->count = 0;
    for (size_t i = 0; i < count; i++)
        if (!extend(f, nodes[i]))
            return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count,
                                           unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if ((uintptr_t)stream <= 2 || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    stream_check(stream);
    pthread_mutex_lock(&capture_lock);
    struct capture *c = stream->capture;
    CUresult result = CUDA_ERROR_ILLEGAL_STATE;
    if (c != NULL && c->spoiled)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (c != NULL)
        result = update_locked(c, &c->reached[stream->lane], nodes, count, flags);
    pthread_mutex_unlock(&capture_lock);
    return result;
}

/* Edges have no data in this driver. */
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
                                              const void *edges, size_t count, unsigned flags) {
    if (edges != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuStreamUpdateCaptureDependencies(stream, nodes, count, flags);
}

CUresult softgpu_capturing(CUstream stream, int *capturing) {
    CUstreamCaptureStatus status;
    struct found f;
    CUresult result = inspect(stream, &status, &f);
    *capturing = result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
    return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ASK(CUDA_ERROR_UNKNOWN);
    if (mode == NULL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
