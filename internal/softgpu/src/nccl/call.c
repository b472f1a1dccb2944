/* Calls: the choice of their path, connections, and log lines. */
#include <stdlib.h>

#include "comm.h"

static const char *const names[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast",
                                    "Reduce",    "AlltoAll",  "Send",          "Recv"};
static const char *const kernels[] = {"AllReduce_RSxLD_AGxST", "AllGather_ST", "ReduceScatter_LD"};

/* Reports whether the window path implements a call. */
static bool implemented(const struct call *call) {
    if (call->factor != 0)
        return false;
    bool half = call->type == ncclFloat16 || call->type == ncclBfloat16;
    switch (call->operation) {
    case ALL_GATHER:
        return true;
    case REDUCE_SCATTER:
        if (call->op == ncclAvg && nccl_version() >= 23003)
            return half || call->type == ncclFloat32;
        /* fall through */
    case ALL_REDUCE:
        return call->op == ncclSum && (half || call->type == ncclFloat32);
    default:
        return false;
    }
}

/* Reports whether the necessary buffers are in windows. Before 2.29.2 both must be. Since then only
 * the buffers that peers access must be. */
static bool registered(const struct call *call) {
    bool send = call->send_window != NULL, recv = call->recv_window != NULL;
    if (call->operation == ALL_REDUCE || nccl_version() < 22902)
        return send && recv;
    return call->operation == ALL_GATHER ? recv : send;
}

/* Returns the size that NCCL logs, which is one rank's part of a gather or scatter. */
static size_t call_bytes(const struct call *call) { return call->count * type_bytes(call->type); }

/* Chooses the path of a call from the addresses alone. */
void call_plan(struct comm *c, struct call *call) {
    if (c->symmetric && c->nranks > 1 && implemented(call)) {
        call->send_window = window_find(c, call->send, &call->send_offset);
        call->recv_window = window_find(c, call->recv, &call->recv_offset);
    }
    bool windowed = registered(call);
    if (!windowed) {
        window_release(call->send_window);
        window_release(call->recv_window);
        call->send_window = call->recv_window = NULL;
    }
    const char *name = names[call->operation];
    if (windowed)
        log_tuning(c, "%s [Symmetric]: %zu Bytes -> Kernel %s nchannels 7 nthreads 512 nWorks 1",
                   name, call_bytes(call), kernels[call->operation]);
    else if (call->operation < SEND)
        log_tuning(c, "%s: %zu Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}", name,
                   call_bytes(call));
}

void call_free(struct call *call) {
    window_release(call->send_window);
    window_release(call->recv_window);
    free(call);
}

static struct flag *end_of(struct channel *channel, bool sender) {
    return sender ? &channel->sender : &channel->receiver;
}

/* Signals that this rank is connected to its end of a channel or, with wait, waits for the peer at
 * the other end. */
static bool meet_peer(struct comm *c, const struct call *call, bool wait) {
    bool sends = call->operation == SEND;
    bool *met = sends ? &c->sends[call->root] : &c->receives[call->root];
    int from = sends ? c->rank : call->root, to = sends ? call->root : c->rank;
    struct channel *channel = shared_channel(c, from, to);
    if (wait)
        return flag_await(c, end_of(channel, !sends), 1);
    if (!*met)
        flag_raise(end_of(channel, sends));
    *met = true;
    return true;
}

static bool connect_pairs(struct comm *c, const struct call *calls) {
    for (int wait = 0; wait < 2; wait++)
        for (const struct call *call = calls; call != NULL; call = call->next)
            if (call->operation >= SEND && !meet_peer(c, call, wait))
                return false;
    return true;
}

/* Establishes the connections that calls use for the first time. It blocks until the peers do the
 * same. */
ncclResult_t calls_connect(struct comm *c, const struct call *calls) {
    bool ring = false;
    char nothing = 0, all[MAX_RANKS];
    for (const struct call *call = calls; call != NULL; call = call->next)
        ring |= call->operation < SEND && !registered(call);
    if (ring && !c->connected) {
        if (!comm_exchange(c, &nothing, 1, all))
            return report(ncclInternalError, "connecting the ring: aborted");
        c->connected = true;
    }
    if (!connect_pairs(c, calls))
        return report(ncclInternalError, "connecting to a peer: aborted");
    return ncclSuccess;
}
