/* Entry points of the CUDA driver that nothing uses here, such as those for libraries and
 * multicast. They exist because bindings look them up. They return an error. */
#include "../abi/cuda.h"

#define UNSUPPORTED(name)                                                                          \
    API CUresult name(void);                                                                       \
    CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }

UNSUPPORTED(cuModuleLoadDataEx)
UNSUPPORTED(cuModuleGetGlobal_v2)
UNSUPPORTED(cuLibraryLoadData)
UNSUPPORTED(cuLibraryUnload)
UNSUPPORTED(cuLibraryGetKernel)
UNSUPPORTED(cuKernelGetFunction)
UNSUPPORTED(cuFuncSetAttribute)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuMulticastGetGranularity)
