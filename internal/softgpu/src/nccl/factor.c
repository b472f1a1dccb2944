/* Reductions that multiply this rank's elements by a factor before they are added. A program creates
 * them for a communicator and destroys them once it has made its calls. There are few, so that a
 * program that destroys none soon fails. */
#include "comm.h"

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
    INJECT();
    if (op == NULL || scalar == NULL || residence != ncclScalarHostImmediate)
        return report(ncclInvalidArgument, "%s: no scalar in host memory", __func__);
    if (type < ncclFloat16 || type >= ncclNumTypes)
        return report(ncclInvalidArgument, "%s: type %d is no float", __func__, (int)type);
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "%s: no communicator", __func__);
    int free = 0;
    pthread_mutex_lock(&c->lock);
    while (free < MAX_FACTORS && c->factors[free] != 0)
        free++;
    if (free < MAX_FACTORS)
        c->factors[free] = first_of(scalar, type);
    pthread_mutex_unlock(&c->lock);
    comm_leave(c);
    if (free == MAX_FACTORS)
        return report(ncclInternalError, "%s: %d reductions exist already", __func__, free);
    *op = (ncclRedOp_t)(ncclNumOps + free);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    INJECT();
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "%s: no communicator", __func__);
    int number = (int)op - ncclNumOps;
    pthread_mutex_lock(&c->lock);
    bool known = number >= 0 && number < MAX_FACTORS && c->factors[number] != 0;
    if (known)
        c->factors[number] = 0;
    pthread_mutex_unlock(&c->lock);
    comm_leave(c);
    return known ? ncclSuccess : report(ncclInvalidArgument, "%s: %d", __func__, (int)op);
}

/* Returns how many elements a communicator of one rank multiplies. Before 2.29.7, NCCL skips up to
 * 31 elements at the end, because it rounds down when it divides them among its blocks. */
static size_t multiplied(size_t count, size_t element) {
    size_t blocks = (count * element + 16383) / 16384, pack = 16 / element;
    if (blocks == 0 || nccl_version() >= 22907)
        return count;
    blocks = blocks < 32 ? blocks : 32;
    size_t covered = blocks * ((count / blocks + pack - 1) / pack * pack);
    return covered < count ? covered : count;
}

/* Replaces a created reduction by the sum and the factor. */
void factor_resolve(struct comm *c, struct call *call) {
    int number = (int)call->op - ncclNumOps;
    pthread_mutex_lock(&c->lock);
    if (number >= 0 && number < MAX_FACTORS && c->factors[number] != 0) {
        call->factor = c->factors[number];
        call->op = ncclSum;
        if (c->nranks == 1)
            call->count = multiplied(call->count, type_bytes(call->type));
    }
    pthread_mutex_unlock(&c->lock);
}
