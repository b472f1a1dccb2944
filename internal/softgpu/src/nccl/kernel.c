/* Kernels: calls as work of a stream. Kernels of one communicator do not overlap. They run in the
 * order of their launches, also on different streams. order.c extends this order to kernels in
 * graphs. */
#include <stdlib.h>

#include "comm.h"

struct kernel {
    struct comm *comm;
    struct call *calls; /* one collective, or the sends and receives of a group */
    int captured;
    struct captured *memory; /* of a captured plain collective, or NULL */
    uint64_t ticket;
};

/* Waits for earlier kernels. An abort does not end this wait, but it ends those kernels. */
void await_ticket(struct comm *c, uint64_t ticket) {
    pthread_mutex_lock(&c->lock);
    while (c->serving != ticket)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static void serve_next(struct comm *c) {
    pthread_mutex_lock(&c->lock);
    c->serving++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Runs a call at whose output address other memory is mapped now. The output is lost. */
static void run_stale(struct comm *c, struct call call) {
    char *old = malloc(call.count * (size_t)c->nranks * type_bytes(call.type));
    if (old == NULL)
        abort();
    call.recv = old;
    plain_run(c, &call);
    free(old);
}

static bool is_plain_collective(const struct call *call) {
    return call->operation < SEND && call->send_window == NULL && call->recv_window == NULL;
}

static void run(struct comm *c, const struct call *calls, int device, struct captured *memory) {
    if (memory != NULL && captured_is_stale(memory, calls->recv))
        run_stale(c, *calls);
    else if (calls->operation >= SEND)
        pairs_run(c, calls);
    else if (calls->send_window != NULL || calls->recv_window != NULL)
        windowed_run(c, calls, device);
    else if (plain_reads_within(c, calls))
        plain_run(c, calls);
    else
        softgpu_fault(device, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void kernel_run(void *arg, int device) {
    struct kernel *k = arg;
    if (!k->captured)
        await_ticket(k->comm, k->ticket);
    pthread_mutex_lock(&k->comm->turn);
    softgpu_running(device, 1);
    if (!atomic_load(&k->comm->aborted))
        run(k->comm, k->calls, device, k->memory);
    softgpu_running(device, -1);
    pthread_mutex_unlock(&k->comm->turn);
    if (!k->captured)
        serve_next(k->comm);
}

static void calls_free(struct call *calls) {
    while (calls != NULL) {
        struct call *next = calls->next;
        call_free(calls);
        calls = next;
    }
}

static void kernel_drop(void *arg) {
    struct kernel *k = arg;
    struct comm *c = k->comm;
    int *counter = k->captured ? &c->persistent : &c->pending;
    calls_free(k->calls);
    if (k->memory != NULL)
        captured_drop(c, k->memory);
    free(k);
    comm_count(c, counter, -1);
}

static ncclResult_t failed(CUresult result) {
    return report(ncclUnhandledCudaError, "launching a kernel: cuda error %d", (int)result);
}

/* Launches one kernel, which takes over its calls. */
static ncclResult_t launch(struct comm *c, struct call *calls) {
    struct kernel *k = calloc(1, sizeof *k);
    if (k == NULL)
        abort();
    k->comm = c;
    k->calls = calls;
    CUresult result = softgpu_capturing(calls->stream, &k->captured);
    comm_count(c, k->captured ? &c->persistent : &c->pending, 1);
    if (k->captured && is_plain_collective(calls))
        k->memory = captured_keep(c, calls->recv);
    if (!k->captured) {
        pthread_mutex_lock(&c->lock);
        k->ticket = c->tickets++;
        pthread_mutex_unlock(&c->lock);
    }
    if (result == CUDA_SUCCESS)
        result = order_enter(c, calls->stream, k->captured);
    CUstream stream = calls->stream;
    bool captured = k->captured;
    if (result == CUDA_SUCCESS)
        result = softgpu_launch(stream, kernel_run, kernel_drop, k);
    if (result == CUDA_SUCCESS) {
        result = order_leave(c, stream, captured);
        return result == CUDA_SUCCESS ? ncclSuccess : failed(result);
    }
    if (!k->captured) {
        pthread_mutex_lock(&c->lock);
        c->tickets--;
        pthread_mutex_unlock(&c->lock);
    }
    kernel_drop(k);
    return failed(result);
}

/* Removes the sends and receives of the first call's stream from a list. */
static struct call *take_batch(struct call **calls) {
    struct call *batch = NULL, **end = &batch;
    CUstream stream = (*calls)->stream;
    for (struct call **at = calls; *at != NULL;) {
        struct call *call = *at;
        if (call->stream != stream) {
            at = &call->next;
            continue;
        }
        *at = call->next;
        call->next = NULL;
        *end = call;
        end = &call->next;
    }
    return batch;
}

/* Launches collectives one by one, and then sends and receives together. It takes over the
 * calls. */
ncclResult_t calls_launch(struct comm *c, struct call *calls) {
    struct call *pairs = NULL, **end = &pairs;
    ncclResult_t result = ncclSuccess;
    while (calls != NULL && result == ncclSuccess) {
        struct call *call = calls;
        calls = call->next;
        call->next = NULL;
        if (call->operation < SEND) {
            result = launch(c, call);
        } else {
            *end = call;
            end = &call->next;
        }
    }
    while (pairs != NULL && result == ncclSuccess)
        result = launch(c, take_batch(&pairs));
    calls_free(calls);
    calls_free(pairs);
    captured_group_ended(c);
    return result;
}
