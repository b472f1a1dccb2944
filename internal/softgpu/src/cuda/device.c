/* Devices: their number and their attributes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static int visible[MAX_DEVICES]; /* number on this machine of each device of this process */
static int visible_count;
static pthread_once_t visible_once = PTHREAD_ONCE_INIT;

/* Reads CUDA_VISIBLE_DEVICES like the driver: up to the first number without a device. */
static void read_visible(void) {
    int machine = (int)environment_size("SOFTGPU_DEVICES", 4);
    if (machine > MAX_DEVICES)
        machine = MAX_DEVICES;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (text == NULL) {
        for (; visible_count < machine; visible_count++)
            visible[visible_count] = visible_count;
        return;
    }
    while (visible_count < MAX_DEVICES) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= machine)
            return;
        visible[visible_count++] = (int)number;
        if (*end != ',')
            return;
        text = end + 1;
    }
}

int device_count(void) {
    pthread_once(&visible_once, read_visible);
    return visible_count;
}

bool device_valid(CUdevice device) { return device >= 0 && device < device_count(); }

int softgpu_physical(CUdevice device) { return device_valid(device) ? visible[device] : -1; }

#define ENTER_DEVICE(device)                                                                       \
    ENTER(CUDA_ERROR_UNKNOWN);                                                                     \
    if (!device_valid(device))                                                                     \
    return CUDA_ERROR_INVALID_DEVICE

CUresult cuDeviceGetCount(int *count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER_DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER_DEVICE(device);
    snprintf(name, (size_t)length, "Software GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER_DEVICE(device);
    memcpy(uuid->bytes, "software-gpu-", 13);
    uuid->bytes[13] = 0;
    uuid->bytes[14] = 0;
    uuid->bytes[15] = (unsigned char)visible[device];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    ENTER_DEVICE(device);
    if (length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", visible[device] + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER_DEVICE(device);
    size_t unused;
    memory_usage(device, &unused, bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER_DEVICE(device);
    if (value == NULL || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_LIMIT)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        *value = MAX_THREADS;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        *value = MAX_BLOCK_Z;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
        *value = MAX_GRID_X;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
        *value = MAX_GRID_YZ;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = MAX_SHARED;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = 2048;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = visible[device] + 1;
        break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: /* also set without support */
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

/* The link between the devices of the machine, as set by SOFTGPU_LINK. */
enum link { NO_LINK, PCIE, NVLINK };

static enum link link_kind(void) {
    const char *text = getenv("SOFTGPU_LINK");
    if (text != NULL && strcmp(text, "none") == 0)
        return NO_LINK;
    return text != NULL && strcmp(text, "pcie") == 0 ? PCIE : NVLINK;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER_DEVICE(device);
    if (!device_valid(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && link_kind() != NO_LINK;
    return CUDA_SUCCESS;
}

/* Attributes: 1 performance rank (0 is best), 2 access, 3 native atomics, 4 arrays. */
CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to) {
    ENTER_DEVICE(from);
    if (!device_valid(to) || from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || attribute < 1 || attribute > 4)
        return CUDA_ERROR_INVALID_VALUE;
    enum link least = attribute == 3 ? NVLINK : PCIE;
    *value = attribute != 1 && link_kind() >= least;
    return CUDA_SUCCESS;
}
