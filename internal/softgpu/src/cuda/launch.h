/* Launches of kernels. */
#ifndef SOFTGPU_LAUNCH_H
#define SOFTGPU_LAUNCH_H

#include "../abi/cuda.h"
#include "grid.h"

/* Reports whether a handle is one of a kernel. */
bool function_valid(CUfunction function);

/* load.c: counts a kernel among those that run on a device, once it has come there. */
void kernel_begin(int device, CUfunction function);

#endif
