/* Entry points of the true driver that nobody needs here: other ways to programs, and multicast.
 * They exist, so that a binding finds them, and say that they are not supported. */
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
