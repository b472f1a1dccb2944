/* The entry points of collectives, sends and receives. */
#include <stdlib.h>

#include "comm.h"

static ncclResult_t check(const struct comm *c, const struct call *call, const char *entry) {
    ncclResult_t result = comm_ready(c);
    if (result != ncclSuccess)
        return result;
    if (c->finalized)
        return report(ncclInvalidUsage, "%s: the communicator is finalized", entry);
    if (c->suspended) /* NCCL's kernels would destroy the context */
        return report(ncclInvalidUsage, "%s: the communicator is suspended", entry);
    if (call->root < 0 || call->root >= c->nranks)
        return report(ncclInvalidArgument, "%s: invalid root %d", entry, call->root);
    if ((unsigned)call->type >= ncclNumTypes)
        return report(ncclInvalidArgument, "%s: invalid type %d", entry, (int)call->type);
    if ((unsigned)call->op >= ncclNumOps)
        return report(ncclInvalidArgument, "%s: invalid reduction operation %d", entry,
                      (int)call->op);
    return ncclSuccess;
}

static ncclResult_t submit(const char *entry, ncclComm_t comm, struct call call) {
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return group_note(report(ncclInvalidArgument, "%s: no communicator", entry));
    factor_resolve(c, &call);
    ncclResult_t result = group_note(check(c, &call, entry));
    if (result == ncclSuccess && call.count > 0) {
        struct call *own = malloc(sizeof *own);
        if (own == NULL)
            abort();
        *own = call;
        result = group_add((struct task){.comm = c, .kind = CALL, .call = own});
    }
    comm_leave(c);
    return result;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
    INJECT();
    struct call call = {.operation = ALL_REDUCE, .send = send, .recv = recv, .count = count,
                        .type = type, .op = op, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, CUstream stream) {
    INJECT();
    struct call call = {.operation = ALL_GATHER, .send = send, .recv = recv, .count = count,
                        .type = type, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
    INJECT();
    struct call call = {.operation = REDUCE_SCATTER, .send = send, .recv = recv, .count = count,
                        .type = type, .op = op, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, CUstream stream) {
    INJECT();
    struct call call = {.operation = BROADCAST, .send = send, .recv = recv, .count = count,
                        .type = type, .root = root, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       CUstream stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream) {
    INJECT();
    struct call call = {.operation = REDUCE, .send = send, .recv = recv, .count = count,
                        .type = type, .op = op, .root = root, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, CUstream stream) {
    INJECT();
    if (nccl_version() < 22803)
        return report(ncclInvalidUsage, "ncclAlltoAll: NCCL has it since 2.28.3");
    struct call call = {.operation = ALL_TO_ALL, .send = send, .recv = recv, .count = count,
                        .type = type, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream) {
    INJECT();
    struct call call = {.operation = SEND, .send = send, .count = count, .type = type,
                        .root = peer, .stream = stream};
    return submit(__func__, comm, call);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      CUstream stream) {
    INJECT();
    struct call call = {.operation = RECV, .recv = recv, .count = count, .type = type,
                        .root = peer, .stream = stream};
    return submit(__func__, comm, call);
}
