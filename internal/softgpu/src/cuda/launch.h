/* Launches of kernels. */
#ifndef SOFTGPU_LAUNCH_H
#define SOFTGPU_LAUNCH_H

#include "../abi/cuda.h"
#include "grid.h"

/* Reports whether a handle refers to a kernel. */
bool function_valid(CUfunction function);

/* load.c: loads a kernel on a device if necessary, and counts it as running. */
void kernel_begin(int device, CUfunction function);

#endif
