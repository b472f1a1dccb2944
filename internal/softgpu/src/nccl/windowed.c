/* The window path. Ranks read and write the memory of their peers directly. The address at a peer
 * is the window of the peer plus this rank's own offset. Nothing checks that the peer's buffer is
 * at that address. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum { BLOCK_BYTES = 16 << 10 };

/* Waits until all ranks have reached this point. */
static bool sweep(struct comm *c) {
    c->sweeps++;
    flag_raise(&shared_place(c, c->rank)->swept);
    for (int r = 0; r < c->nranks; r++)
        if (!flag_await(c, &shared_place(c, r)->swept, c->sweeps))
            return false;
    return true;
}

/* Adds elements [from, to) of the send buffers of all ranks, block by block. It writes the sums to
 * the start of this rank's receive buffer, or to the same elements of all receive buffers. */
static void sum(struct comm *c, const struct call *call, size_t from, size_t to, bool everybody) {
    char block[BLOCK_BYTES] __attribute__((aligned(16)));
    const void *sources[MAX_RANKS];
    size_t element = type_bytes(call->type), most = BLOCK_BYTES / element;
    for (size_t at = from; at < to; at += most) {
        size_t n = to - at < most ? to - at : most;
        for (int r = 0; r < c->nranks; r++)
            sources[r] = window_at(call->send_window, r, call->send_offset + at * element);
        reduce(block, sources, c->nranks, n, call->type, call->op);
        size_t there = call->recv_offset + at * element;
        if (!everybody)
            memcpy(call->recv + (at - from) * element, block, n * element);
        for (int r = 0; everybody && r < c->nranks; r++)
            memcpy(window_at(call->recv_window, r, there), block, n * element);
    }
}

static void all_reduce(struct comm *c, const struct call *call) {
    size_t n = (size_t)c->nranks, rank = (size_t)c->rank;
    sum(c, call, call->count * rank / n, call->count * (rank + 1) / n, true);
}

static void reduce_scatter(struct comm *c, const struct call *call) {
    size_t from = call->count * (size_t)c->rank;
    sum(c, call, from, from + call->count, false);
}

static void all_gather(struct comm *c, const struct call *call) {
    size_t bytes = call->count * type_bytes(call->type);
    size_t there = call->recv_offset + (size_t)c->rank * bytes;
    for (int r = 0; r < c->nranks; r++)
        memmove(window_at(call->recv_window, r, there), call->send, bytes);
}

/* Reports whether a buffer is in memory: its window is registered, and the buffer does not extend
 * beyond the allocations. It may extend beyond the window. */
static bool mapped(const struct window *w, size_t offset, size_t bytes) {
    return w == NULL || (window_live(w) && window_covers(w, offset, bytes));
}

static void move(struct comm *c, const struct call *call) {
    if (call->operation == ALL_REDUCE)
        all_reduce(c, call);
    else if (call->operation == REDUCE_SCATTER)
        reduce_scatter(c, call);
    else
        all_gather(c, call);
}

/* Reports whether SOFTGPU_DEAF is 1. */
bool kernels_are_deaf(void) {
    const char *wanted = getenv("SOFTGPU_DEAF");
    return wanted != NULL && *wanted == '1';
}

/* Runs a call. Returns false if the communicator was aborted. */
bool windowed_run(struct comm *c, const struct call *call, int device) {
    size_t one = call->count * type_bytes(call->type), all = one * (size_t)c->nranks;
    size_t sent = call->operation == REDUCE_SCATTER ? all : one;
    size_t received = call->operation == ALL_GATHER ? all : one;
    if (!mapped(call->send_window, call->send_offset, sent) ||
        !mapped(call->recv_window, call->recv_offset, received)) {
        softgpu_fault(device, CUDA_ERROR_ILLEGAL_ADDRESS);
        return true;
    }
    deaf = kernels_are_deaf();
    bool whole = sweep(c);
    if (whole)
        move(c, call);
    whole = whole && sweep(c);
    deaf = false;
    return whole;
}
