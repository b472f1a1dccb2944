/* The part of the CUDA driver's ABI that the software GPU implements. Names, values and sizes are
 * those of cuda.h of CUDA 12 and 13 on 64-bit Linux. */
#ifndef SOFTGPU_ABI_CUDA_H
#define SOFTGPU_ABI_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct graph *CUgraph;
typedef struct object *CUuserObject;
typedef struct exec *CUgraphExec;
typedef struct node *CUgraphNode;
typedef struct module *CUmodule;
typedef const struct gpu_kernel *CUfunction;
typedef void (*CUhostFn)(void *data);

typedef enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;

typedef struct CUuuid {
    unsigned char bytes[16];
} CUuuid;

enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_FABRIC = 8 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };

typedef struct CUmemLocation {
    int type;
    int id;
} CUmemLocation;

typedef struct CUmemAllocationProp {
    int type;
    int requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

#ifndef __cplusplus
_Static_assert(sizeof(CUuuid) == 16, "CUuuid");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc: elements of an array are 12 apart");
#endif

enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132,
    CU_DEVICE_ATTRIBUTE_LIMIT = 160
};

enum {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    CU_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
};

/* Keys and end of the list that cuLaunchKernel takes as its last argument. */
enum {
    CU_LAUNCH_PARAM_END = 0,
    CU_LAUNCH_PARAM_BUFFER_POINTER = 1,
    CU_LAUNCH_PARAM_BUFFER_SIZE = 2
};

enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_RECORD_EXTERNAL = 1, CU_EVENT_WAIT_EXTERNAL = 1 };

typedef enum CUstreamCaptureMode {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
} CUstreamCaptureMode;

typedef enum CUstreamCaptureStatus {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
} CUstreamCaptureStatus;

enum { CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1 };

/* Functions that test programs and the software NCCL call. */
API CUresult cuInit(unsigned flags);
API CUresult cuDriverGetVersion(int *version);
API CUresult cuGetErrorName(CUresult code, const char **name);
API CUresult cuGetErrorString(CUresult code, const char **text);
API CUresult cuDeviceGetCount(int *count);
API CUresult cuDeviceGet(CUdevice *device, int ordinal);
API CUresult cuDeviceGetName(char *name, int length, CUdevice device);
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device);
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to);
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
API CUresult cuCtxSetCurrent(CUcontext context);
API CUresult cuCtxGetCurrent(CUcontext *context);
API CUresult cuCtxGetDevice(CUdevice *device);
API CUresult cuCtxSynchronize(void);
API CUresult cuMemGetInfo_v2(size_t *unused, size_t *total);
API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                           int kind);
API CUresult cuMemAddressReserve(CUdeviceptr *base, size_t bytes, size_t alignment,
                                 CUdeviceptr wish, unsigned long long flags);
API CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes);
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                         const CUmemAllocationProp *prop, unsigned long long flags);
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
API CUresult cuMemMap(CUdeviceptr base, size_t bytes, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags);
API CUresult cuMemUnmap(CUdeviceptr base, size_t bytes);
API CUresult cuMemSetAccess(CUdeviceptr base, size_t bytes, const CUmemAccessDesc *descs,
                            size_t count);
API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *at, CUdeviceptr base);
API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                          unsigned long long flags);
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from,
                                            int type);
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                    CUmemGenericAllocationHandle handle);
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
API CUresult cuMemAlloc_v2(CUdeviceptr *base, size_t bytes);
API CUresult cuMemFree_v2(CUdeviceptr base);
API CUresult cuMemAllocHost_v2(void **base, size_t bytes);
API CUresult cuMemHostAlloc(void **base, size_t bytes, unsigned flags);
API CUresult cuMemFreeHost(void *base);
API CUresult cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags);
API CUresult cuMemHostUnregister(void *base);
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *base, unsigned flags);
API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream);
API CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream);
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream);
API CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t words, CUstream stream);
API CUresult cuStreamCreate(CUstream *stream, unsigned flags);
API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
API CUresult cuStreamDestroy_v2(CUstream stream);
API CUresult cuStreamQuery(CUstream stream);
API CUresult cuStreamSynchronize(CUstream stream);
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn work, void *data);
API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, unsigned value,
                                    unsigned flags);
API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr word, unsigned value,
                                     unsigned flags);
API CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream);
API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream);
API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                       unsigned long long *id, CUgraph *graph,
                                       const CUgraphNode **nodes, size_t *count);
API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                       unsigned long long *id, CUgraph *graph,
                                       const CUgraphNode **nodes, const void **edges,
                                       size_t *count);
API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count,
                                               unsigned flags);
API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
                                                  const void *edges, size_t count,
                                                  unsigned flags);
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
API CUresult cuEventCreate(CUevent *event, unsigned flags);
API CUresult cuEventRecord(CUevent event, CUstream stream);
API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
API CUresult cuEventQuery(CUevent event);
API CUresult cuEventSynchronize(CUevent event);
API CUresult cuEventDestroy_v2(CUevent event);
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                         unsigned long long flags);
API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges,
                                size_t *count);
API CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                       size_t count, CUevent event);
API CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                     size_t count, CUevent event);
API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t count);
API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, const void *edges, size_t count);
API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, size_t count);
API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                          const CUgraphNode *to, const void *edges, size_t count);
API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
API CUresult cuGraphExecDestroy(CUgraphExec exec);
API CUresult cuGraphDestroy(CUgraph graph);
enum { CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1, CU_GRAPH_USER_OBJECT_MOVE = 1 };
API CUresult cuUserObjectCreate(CUuserObject *object, void *arg, CUhostFn destroy, unsigned count,
                                unsigned flags);
API CUresult cuUserObjectRetain(CUuserObject object, unsigned count);
API CUresult cuUserObjectRelease(CUuserObject object, unsigned count);
API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                     unsigned flags);
API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count);
API CUresult cuModuleLoadData(CUmodule *module, const void *image);
API CUresult cuModuleUnload(CUmodule module);
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module);
API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module);
API CUresult cuFuncLoad(CUfunction function);
API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                            CUstream stream, void **params, void **extra);

typedef struct {
    unsigned id, unused;
    char value[64];
} CUlaunchAttribute;
typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned count;
} CUlaunchConfig;
enum { CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                              void **extra);

#endif
