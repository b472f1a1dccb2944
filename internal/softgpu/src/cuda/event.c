/* Events. Each record creates a point, which is reached once. An event refers to its latest point.
 * A wait holds the point that was the latest at its begin. */
#include <stdlib.h>

#include "driver.h"

struct point {
    _Atomic int references;
    pthread_mutex_t lock;
    pthread_cond_t reached;
    bool done;
    struct timespec when;
};

struct event {
    _Atomic int references; /* held by the handle and by graphs */
    unsigned flags;
    struct point *point;       /* NULL until the first record; guarded by capture_lock */
    struct frontier captured; /* work captured by the last record; guarded by capture_lock */
};

static struct point *point_new(void) {
    struct point *p = calloc(1, sizeof *p);
    if (p == NULL)
        abort();
    atomic_init(&p->references, 1);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->reached, NULL);
    return p;
}

static struct point *point_keep(struct point *p) {
    if (p != NULL)
        atomic_fetch_add(&p->references, 1);
    return p;
}

static void point_release(void *arg) {
    struct point *p = arg;
    if (p == NULL || atomic_fetch_sub(&p->references, 1) > 1)
        return;
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->reached);
    free(p);
}

static void point_reach(void *arg, int device) {
    struct point *p = arg;
    (void)device;
    pthread_mutex_lock(&p->lock);
    clock_gettime(CLOCK_MONOTONIC, &p->when);
    p->done = true;
    pthread_cond_broadcast(&p->reached);
    pthread_mutex_unlock(&p->lock);
}

static void point_await(void *arg, int device) {
    struct point *p = arg;
    (void)device;
    pthread_mutex_lock(&p->lock);
    while (!p->done)
        pthread_cond_wait(&p->reached, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static bool point_done(struct point *p) {
    pthread_mutex_lock(&p->lock);
    bool done = p->done;
    pthread_mutex_unlock(&p->lock);
    return done;
}

static void event_release(void *arg) {
    struct event *e = arg;
    if (atomic_fetch_sub(&e->references, 1) > 1)
        return;
    point_release(e->point);
    free(e);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (event == NULL || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = calloc(1, sizeof *e);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&e->references, 1);
    e->flags = flags;
    handle_add(EVENT, e);
    *event = e;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_remove(EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    event_release(event);
    return CUDA_SUCCESS;
}

/* Creates the work that records an event. The event then refers to the new point. */
static struct work *record_locked(struct event *e) {
    point_release(e->point);
    e->point = point_new();
    e->captured.capture = 0;
    struct work *w = work_new(point_reach, point_release, point_keep(e->point));
    w->always = true;
    return w;
}

static struct work *await_locked(struct event *e) {
    struct work *w = work_new(point_await, point_release, point_keep(e->point));
    w->always = true;
    return w;
}

static struct work *arm_record(void *arg) { return record_locked(arg); }

static struct work *arm_await(void *arg) {
    struct event *e = arg;
    return e->point != NULL ? await_locked(e) : NULL;
}

static struct work *node_work(struct event *e, struct work *(*arm)(void *)) {
    atomic_fetch_add(&e->references, 1);
    struct work *w = work_new(NULL, event_release, e);
    w->arm = arm;
    return w;
}

/* Works of graph nodes. Each launch of the graph records the event, or waits for it. */
struct work *event_record_work(struct event *e) { return node_work(e, arm_record); }
struct work *event_wait_work(struct event *e) { return node_work(e, arm_await); }

static CUresult add_node_locked(struct stream *s, struct work *w) {
    CUresult result = capture_add_locked(s, w);
    if (result != CUDA_SUCCESS)
        work_release(w);
    return result;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_live(EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS || flags > CU_EVENT_RECORD_EXTERNAL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&capture_lock);
    if (stream->capture == NULL && flags == CU_EVENT_RECORD_EXTERNAL)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (stream->capture == NULL)
        stream_push(stream, record_locked(event));
    else if (flags == CU_EVENT_RECORD_EXTERNAL)
        result = add_node_locked(stream, event_record_work(event));
    else
        capture_reached_locked(stream, &event->captured);
    pthread_mutex_unlock(&capture_lock);
    return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    return cuEventRecordWithFlags(event, stream, 0);
}

/* Makes a stream wait for an event. If a capture recorded the event, the stream joins that
 * capture. */
static CUresult wait_locked(struct stream *s, struct event *e, unsigned flags) {
    if (flags == CU_EVENT_WAIT_EXTERNAL && s->capture != NULL)
        return add_node_locked(s, event_wait_work(e));
    if (e->captured.capture != 0 || (s->capture != NULL && e->point != NULL))
        return capture_wait_locked(s, &e->captured);
    if (s->capture == NULL && e->point != NULL)
        stream_push(s, await_locked(e));
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_live(EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS || flags > CU_EVENT_WAIT_EXTERNAL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&capture_lock);
    result = wait_locked(stream, event, flags);
    pthread_mutex_unlock(&capture_lock);
    return result;
}

/* Finds the latest point of an event for a query from outside of captures. */
static CUresult look(struct event *e, struct point **point) {
    *point = NULL;
    if (!handle_live(EVENT, e))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&capture_lock);
    if (e->captured.capture != 0) {
        capture_spoil_locked(e->captured.capture);
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else {
        *point = point_keep(e->point);
    }
    pthread_mutex_unlock(&capture_lock);
    if (result == CUDA_SUCCESS && capture_forbids())
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result;
}

CUresult cuEventQuery(CUevent event) {
    ASK(CUDA_ERROR_UNKNOWN);
    struct point *p;
    CUresult result = look(event, &p);
    if (result == CUDA_SUCCESS && p != NULL && !point_done(p))
        result = CUDA_ERROR_NOT_READY;
    point_release(p);
    return result;
}

CUresult cuEventSynchronize(CUevent event) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct point *p;
    CUresult result = look(event, &p);
    if (result == CUDA_SUCCESS && p != NULL)
        point_await(p, 0);
    point_release(p);
    return result;
}

static CUresult elapsed(struct point *start, struct point *end, float *milliseconds) {
    if (start == NULL || end == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!point_done(start) || !point_done(end))
        return CUDA_ERROR_NOT_READY;
    double seconds = (double)(end->when.tv_sec - start->when.tv_sec);
    double nanoseconds = (double)(end->when.tv_nsec - start->when.tv_nsec);
    *milliseconds = (float)(seconds * 1e3 + nanoseconds / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER(CUDA_ERROR_UNKNOWN);
    struct point *from = NULL, *to = NULL;
    CUresult result = look(start, &from);
    if (result == CUDA_SUCCESS)
        result = look(end, &to);
    if (result == CUDA_SUCCESS && ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = elapsed(from, to, milliseconds);
    point_release(from);
    point_release(to);
    return result;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime(milliseconds, start, end);
}
