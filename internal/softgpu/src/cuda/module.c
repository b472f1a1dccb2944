/* Modules and their kernels. The kernels are compiled into this library, so every image contains
 * all of them. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "launch.h"

struct module {
    CUcontext context;
};

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (module == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (*(const char *)image == '\0')
        return CUDA_ERROR_INVALID_IMAGE;
    struct module *m = malloc(sizeof *m);
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->context = current;
    handle_add(MODULE, m);
    *module = m;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_remove(MODULE, module))
        return CUDA_ERROR_INVALID_HANDLE;
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (function == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_live(MODULE, module))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < gpu_kernel_count; i++)
        if (strcmp(gpu_kernels[i].name, name) == 0) {
            *function = &gpu_kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_live(MODULE, module))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)gpu_kernel_count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (functions == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_live(MODULE, module))
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < count && i < gpu_kernel_count; i++)
        functions[i] = &gpu_kernels[i];
    return CUDA_SUCCESS;
}

bool function_valid(CUfunction function) {
    size_t distance = (uintptr_t)function - (uintptr_t)gpu_kernels;
    return distance < gpu_kernel_count * sizeof *function && distance % sizeof *function == 0;
}

/* Returns an attribute of a kernel. Attributes without a meaning on a CPU, such as registers, are
 * 0. */
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    static const int values[] = {
        [CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = MAX_THREADS,
        [CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90,
        [CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90,
        [CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = MAX_SHARED,
        [CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1,
    };
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (value == NULL || attribute < 0 || attribute >= (int)(sizeof values / sizeof values[0]))
        return CUDA_ERROR_INVALID_VALUE;
    *value = values[attribute];
    return CUDA_SUCCESS;
}
