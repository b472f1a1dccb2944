/* The plain path. Every rank writes a chunk into its stage, waits for its peers, and reads what it
 * needs. A stage has two halves, which are used alternately. Once all ranks have written the next
 * chunk, all of them have read the previous one. Ranks do not compare their calls. If counts, types
 * or operations differ, the results are wrong, or a rank waits forever. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

struct chunk {
    size_t offset, count; /* elements of each part */
    size_t piece;         /* size of a part of the chunk in a stage, in bytes */
    unsigned half;
};

static char *part(const struct comm *c, const struct chunk *k, int rank, int number) {
    return shared_stage(c, rank, k->half) + (size_t)number * k->piece;
}

/* Writes this rank's chunk: one part, or one part for each rank. */
static void put(struct comm *c, const struct call *call, const struct chunk *k) {
    size_t element = type_bytes(call->type), bytes = k->count * element;
    if (call->operation == BROADCAST && c->rank != call->root)
        return;
    bool many = call->operation == REDUCE_SCATTER || call->operation == ALL_TO_ALL;
    for (int r = 0; r < (many ? c->nranks : 1); r++) {
        size_t from = ((size_t)r * call->count + k->offset) * element;
        memcpy(part(c, k, c->rank, r), call->send + from, bytes);
        if (call->factor != 0)
            scale(part(c, k, c->rank, r), k->count, call->type, call->factor);
    }
}

static bool meet(struct comm *c) {
    c->steps++;
    flag_raise(&shared_place(c, c->rank)->arrived);
    for (int r = 0; r < c->nranks; r++)
        if (!flag_await(c, &shared_place(c, r)->arrived, c->steps))
            return false;
    return true;
}

/* Reduces one part of the chunks of all ranks. */
static void gather_sum(struct comm *c, const struct call *call, const struct chunk *k, int number) {
    const void *sources[MAX_RANKS];
    for (int r = 0; r < c->nranks; r++)
        sources[r] = part(c, k, r, number);
    char *to = call->recv + k->offset * type_bytes(call->type);
    reduce(to, sources, c->nranks, k->count, call->type, call->op);
}

/* Copies one part of each rank's chunk to the place of that rank. */
static void gather(struct comm *c, const struct call *call, const struct chunk *k, int number) {
    size_t element = type_bytes(call->type);
    for (int r = 0; r < c->nranks; r++) {
        size_t to = ((size_t)r * call->count + k->offset) * element;
        memcpy(call->recv + to, part(c, k, r, number), k->count * element);
    }
}

static void get(struct comm *c, const struct call *call, const struct chunk *k) {
    size_t element = type_bytes(call->type);
    switch (call->operation) {
    case ALL_REDUCE:
        gather_sum(c, call, k, 0);
        break;
    case REDUCE:
        if (c->rank == call->root)
            gather_sum(c, call, k, 0);
        break;
    case REDUCE_SCATTER:
        gather_sum(c, call, k, c->rank);
        break;
    case ALL_GATHER:
        gather(c, call, k, 0);
        break;
    case ALL_TO_ALL:
        gather(c, call, k, c->rank);
        break;
    default:
        memcpy(call->recv + k->offset * element, part(c, k, call->root, 0), k->count * element);
    }
}

/* Reports whether the allocation of the send buffer contains all that NCCL reads. NCCL reads whole
 * words of 4 bytes (observed with memcheck). */
bool plain_reads_within(const struct comm *c, const struct call *call) {
    bool many = call->operation == REDUCE_SCATTER || call->operation == ALL_TO_ALL;
    size_t parts = many ? (size_t)c->nranks : 1, bytes = 0;
    uintptr_t from = (uintptr_t)call->send, base = 0;
    uintptr_t end = (from + parts * call->count * type_bytes(call->type) + 3) & ~(uintptr_t)3;
    if (cuMemGetAddressRange_v2((CUdeviceptr *)&base, &bytes, (CUdeviceptr)from) != CUDA_SUCCESS)
        return true;
    return end <= base + bytes;
}

/* Waits as long as the network between machines needs for a rank's part of a chunk. */
static void cross_network(const struct comm *c, size_t bytes) {
    const char *text = getenv("SOFTGPU_NETWORK");
    if (!c->several_nodes || text == NULL || *text == '\0')
        return;
    long long ns = (long long)bytes * atoi(text) * 1000 / 1024;
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

/* Runs a call. Returns false if the communicator was aborted. */
bool plain_run(struct comm *c, const struct call *call) {
    bool many = call->operation == REDUCE_SCATTER || call->operation == ALL_TO_ALL;
    size_t piece = many ? STAGE_BYTES / (size_t)c->nranks & ~(size_t)15 : STAGE_BYTES;
    size_t most = piece / type_bytes(call->type);
    for (size_t at = 0; at < call->count; at += most) {
        size_t n = call->count - at < most ? call->count - at : most;
        struct chunk k = {.offset = at, .count = n, .piece = piece, .half = c->steps};
        put(c, call, &k);
        cross_network(c, n * type_bytes(call->type));
        if (!meet(c))
            return false;
        get(c, call, &k);
    }
    return true;
}
