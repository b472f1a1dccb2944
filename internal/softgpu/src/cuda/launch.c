/* Launches: works that run a grid. Each holds a copy of its parameters, also as a graph node. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "launch.h"

struct kernel_launch {
    CUfunction function;
    struct extent grid, block;
    _Alignas(16) char params[];
};

static void kernel_run(void *arg, int device) {
    struct kernel_launch *l = arg;
    kernel_begin(device, l->function);
    grid_run(l->function->run, l->params, l->grid, l->block);
    softgpu_running(device, -1);
}

static bool fits(struct extent grid, struct extent block, unsigned shared) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0)
        return false;
    if (grid.x > MAX_GRID_X || grid.y > MAX_GRID_YZ || grid.z > MAX_GRID_YZ)
        return false;
    if (block.x > MAX_THREADS || block.y > MAX_THREADS || block.z > MAX_BLOCK_Z)
        return false;
    return block.x * block.y * block.z <= MAX_THREADS && shared <= MAX_SHARED;
}

/* Finds the parameters in a list of options. Returns NULL if their size is wrong. */
static const void *packed(void **extra, size_t bytes) {
    const void *at = NULL;
    const size_t *size = NULL;
    for (; *extra != (void *)CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == (void *)CU_LAUNCH_PARAM_BUFFER_POINTER)
            at = extra[1];
        else if (*extra == (void *)CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = extra[1];
        else
            return NULL;
    }
    return size != NULL && *size == bytes ? at : NULL;
}

/* Finds the parameters of a launch. They are passed either as a list of addresses, here of one
 * structure, or as one packed buffer. */
static const void *find_params(CUfunction function, void **params, void **extra) {
    if ((params == NULL) == (extra == NULL))
        return NULL;
    return params != NULL ? params[0] : packed(extra, function->bytes);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void **params, void **extra) {
    struct extent grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    const void *from = find_params(function, params, extra);
    if (from == NULL || !fits(grid, block, shared))
        return CUDA_ERROR_INVALID_VALUE;
    struct kernel_launch *l = aligned_alloc(16, (sizeof *l + function->bytes + 15) / 16 * 16);
    if (l == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *l = (struct kernel_launch){.function = function, .grid = grid, .block = block};
    memcpy(l->params, from, function->bytes);
    CUresult result = softgpu_launch(stream, kernel_run, free, l);
    if (result != CUDA_SUCCESS)
        free(l);
    return result;
}

/* Launches a kernel with attributes. Those for overlapping launches have no effect here. All others
 * are refused. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **extra) {
    if (config == NULL || (config->count > 0 && config->attributes == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->count; i++)
        if (config->attributes[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return CUDA_ERROR_NOT_SUPPORTED;
    return cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z, config->block_x,
                          config->block_y, config->block_z, config->shared, config->stream, params,
                          extra);
}
