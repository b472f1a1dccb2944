/* Streams. Each is a thread that runs works from a queue, one after the other. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

struct entry {
    struct entry *next;
    struct work *work;
};

/* Removes the next entry from the queue. Returns NULL if the stream is closed and the queue is
 * empty. */
static struct entry *take(struct stream *s) {
    pthread_mutex_lock(&s->lock);
    while (s->head == NULL && !s->closing)
        pthread_cond_wait(&s->more, &s->lock);
    struct entry *e = s->head;
    if (e != NULL) {
        s->head = e->next;
        if (s->head == NULL)
            s->tail = &s->head;
    }
    pthread_mutex_unlock(&s->lock);
    return e;
}

static void *stream_main(void *arg) {
    struct stream *s = arg;
    useconds_t lag = (useconds_t)environment_size("SOFTGPU_LAG", 0);
    for (struct entry *e; (e = take(s)) != NULL; free(e)) {
        if (lag > 0)
            usleep(lag);
        work_run(e->work, s->device);
        work_release(e->work);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->moved);
        pthread_mutex_unlock(&s->lock);
        context_add(s->device, -1);
    }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    pthread_cond_destroy(&s->moved);
    free(s);
    return NULL;
}

/* Starts a thread with all signals blocked, because signals must reach the program's own
 * threads. */
int thread_start(void *(*run)(void *), void *arg) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &detached, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return failed;
}

static struct stream *stream_new(int device) {
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->device = device;
    s->tail = &s->head;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->moved, NULL);
    handle_add(STREAM, s);
    if (thread_start(stream_main, s) != 0) {
        handle_remove(STREAM, s);
        free(s);
        return NULL;
    }
    return s;
}

/* Returns the default stream of a device. */
static struct stream *implicit_stream(struct context *c) {
    pthread_mutex_lock(&c->lock);
    struct stream *s = c->implicit;
    pthread_mutex_unlock(&c->lock);
    if (s != NULL)
        return s;
    struct stream *made = stream_new(c->device);
    pthread_mutex_lock(&c->lock);
    if (c->implicit == NULL)
        c->implicit = made;
    s = c->implicit;
    pthread_mutex_unlock(&c->lock);
    return s;
}

/* Aborts the process if a stream was destroyed. CUDA would access freed memory. */
void stream_check(CUstream stream) {
    if (handle_live(STREAM, stream))
        return;
    fprintf(stderr, "software GPU: stream %p is used after it was destroyed\n", (void *)stream);
    abort();
}

/* Replaces the handles 0, 1 and 2 by the default stream. */
CUresult stream_resolve(CUstream *stream) {
    if ((uintptr_t)*stream > 2) {
        stream_check(*stream);
        return CUDA_SUCCESS;
    }
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *stream = implicit_stream(current);
    return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Appends a work. The stream takes over the reference. */
void stream_push(struct stream *s, struct work *w) {
    struct entry *e = malloc(sizeof *e);
    if (e == NULL)
        abort();
    *e = (struct entry){.work = w};
    context_add(s->device, 1);
    pthread_mutex_lock(&s->lock);
    *s->tail = e;
    s->tail = &e->next;
    s->pushed++;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

/* Queues a work, or records it if the stream is captured. It takes over the reference only on
 * success. */
CUresult stream_queue(struct stream *s, struct work *w) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&capture_lock);
    bool capturing = s->capture != NULL;
    if (capturing)
        result = capture_add_locked(s, w);
    else
        stream_push(s, w);
    pthread_mutex_unlock(&capture_lock);
    return result;
}

/* Waits for all work that has been queued before. */
CUresult stream_drain(struct stream *s) {
    pthread_mutex_lock(&s->lock);
    unsigned long long until = s->pushed;
    while (s->done < until)
        pthread_cond_wait(&s->moved, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return (CUresult)atomic_load(&context_of(s->device)->error);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (stream == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = stream_new(current->device);
    return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}

/* Destroys a stream without waiting. The stream's thread ends when the queued work is complete. */
CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_remove(STREAM, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    capture_leave(stream);
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_signal(&stream->more);
    pthread_mutex_unlock(&stream->lock);
    return CUDA_SUCCESS;
}

/* Returns an error if the stream is captured, and invalidates the capture. */
static CUresult check_not_capturing(struct stream *s) {
    CUresult result = CUDA_SUCCESS;
    struct frontier reached;
    pthread_mutex_lock(&capture_lock);
    if (s->capture != NULL) {
        capture_reached_locked(s, &reached);
        capture_spoil_locked(reached.capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&capture_lock);
    return result;
}

CUresult cuStreamQuery(CUstream stream) {
    ASK(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (result == CUDA_SUCCESS)
        result = check_not_capturing(stream);
    if (result == CUDA_SUCCESS && capture_forbids())
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&stream->lock);
    bool idle = stream->done == stream->pushed;
    pthread_mutex_unlock(&stream->lock);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (result == CUDA_SUCCESS)
        result = check_not_capturing(stream);
    return result == CUDA_SUCCESS ? stream_drain(stream) : result;
}

CUresult softgpu_launch(CUstream stream, void (*run)(void *arg, int device),
                        void (*drop)(void *arg), void *arg) {
    ENTER(CUDA_ERROR_UNKNOWN);
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    struct work *w = work_new(run, drop, arg);
    result = stream_queue(stream, w);
    if (result != CUDA_SUCCESS) {
        w->drop = NULL;
        work_release(w);
    }
    return result;
}
