/* The part of NCCL's ABI that the software NCCL implements. Names and values are those of
 * nccl.h. */
#ifndef SOFTGPU_ABI_NCCL_H
#define SOFTGPU_ABI_NCCL_H

#include "cuda.h"

typedef struct comm *ncclComm_t;
typedef struct window *ncclWindow_t;

typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

typedef enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

typedef enum ncclDataType_t {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclNumTypes = 10
} ncclDataType_t;

typedef enum ncclRedOp_t {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5
} ncclRedOp_t;

typedef enum ncclScalarResidence_t {
    ncclScalarDevice = 0,
    ncclScalarHostImmediate = 1
} ncclScalarResidence_t;

enum { NCCL_WIN_DEFAULT = 0, NCCL_WIN_COLL_SYMMETRIC = 1 };

/* The first fields, which are the same in all versions since 2.14. */
typedef struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;

API ncclResult_t ncclGetVersion(int *version);
API ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
API const char *ncclGetErrorString(ncclResult_t code);
API const char *ncclGetLastError(ncclComm_t comm);
API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                        ncclConfig_t *config);
API ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int ids,
                                          ncclUniqueId *id, ncclConfig_t *config);
API ncclResult_t ncclCommFinalize(ncclComm_t comm);
API ncclResult_t ncclCommDestroy(ncclComm_t comm);
API ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
API ncclResult_t ncclCommResume(ncclComm_t comm);
API ncclResult_t ncclCommAbort(ncclComm_t comm);
API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
API ncclResult_t ncclCommCount(ncclComm_t comm, int *count);
API ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device);
API ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank);
API ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t bytes, void **handle);
API ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
API ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes,
                                        ncclWindow_t *window, int flags);
API ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                          ncclScalarResidence_t residence, ncclComm_t comm);
API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
API ncclResult_t ncclGroupStart(void);
API ncclResult_t ncclGroupEnd(void);
API ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, CUstream stream);
API ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclComm_t comm, CUstream stream);
API ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t comm, CUstream stream);
API ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                               int root, ncclComm_t comm, CUstream stream);
API ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, CUstream stream);
API ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream);
API ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
                              ncclComm_t comm, CUstream stream);
API ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                          ncclComm_t comm, CUstream stream);
API ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                          CUstream stream);

#endif
