/* Memory: handles, mappings, access, accounting and export. */
#include "scene.h"

static char *bytes_at(CUdeviceptr at) { return (char *)(uintptr_t)at; }

static void scene_two_mappings(void) {
    size_t before, after, total;
    MUST(cuMemGetInfo_v2(&before, &total));
    struct segment s = make_segment(0, SEGMENT);
    MUST(cuMemGetInfo_v2(&after, &total));
    CHECK(before - after == SEGMENT);
    CHECK(s.at != s.alias);
    memset(bytes_at(s.at), 7, SEGMENT);
    CHECK(bytes_at(s.alias)[SEGMENT - 1] == 7);
    free_segment(s, SEGMENT);
    MUST(cuMemGetInfo_v2(&after, &total));
    CHECK(before == after);
}

static void scene_export(void) {
    CUmemGenericAllocationHandle own = make_memory(0, SEGMENT), imported;
    CUdeviceptr at = map_segment(own, SEGMENT), base;
    size_t bytes;
    int fd;
    MUST(cuMemExportToShareableHandle(&fd, own, 1, 0));
    MUST(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1));
    close(fd);
    CUdeviceptr other = map_segment(imported, SEGMENT);
    bytes_at(at)[5] = 42;
    CHECK(bytes_at(other)[5] == 42);
    MUST(cuMemGetAddressRange_v2(&base, &bytes, at + 12345));
    CHECK(base == at && bytes == SEGMENT);
    CUmemGenericAllocationHandle retained;
    MUST(cuMemRetainAllocationHandle(&retained, bytes_at(at + 99)));
    CHECK(retained == own);
    MUST(cuMemRelease(retained));
    MUST(cuMemRelease(own));
    MUST(cuMemRelease(imported));
    MUST(cuMemUnmap(at, SEGMENT));
    MUST(cuMemUnmap(other, SEGMENT));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(own));
    MUST(cuMemAddressFree(at, SEGMENT));
    MUST(cuMemAddressFree(other, SEGMENT));
}

static void scene_refused(void) {
    CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 4096, &prop, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, (size_t)1 << 40, &prop, 0));
    prop.location.id = 99;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, SEGMENT, &prop, 0));
    handle = make_memory(0, SEGMENT);
    MUST(cuMemAddressReserve(&at, 2 * SEGMENT, 0, 0, 0));
    MUST(cuMemMap(at, SEGMENT, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, SEGMENT, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(at + 2 * SEGMENT, SEGMENT, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, SEGMENT / 2));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 2 * SEGMENT));
    MUST(cuMemUnmap(at, SEGMENT));
    MUST(cuMemAddressFree(at, 2 * SEGMENT));
    MUST(cuMemRelease(handle));
}

/* An access to memory without permission puts the device into an error state. */
static void scene_illegal(CUcontext context) {
    CUstream stream;
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle = make_memory(0, SEGMENT);
    CUmemAccessDesc other = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, 3};
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAddressReserve(&at, SEGMENT, 0, 0, 0));
    MUST(cuMemMap(at, SEGMENT, 0, handle, 0));
    MUST(cuMemSetAccess(at, SEGMENT, &other, 1));
    MUST(cuMemsetD8Async(at, 1, 16, stream));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD8Async(at, 1, 16, stream));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSetCurrent(context));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuMemUnmap(at, SEGMENT));
    MUST(cuMemRelease(handle));
}

static void scene_host(void) {
    static char some[4096];
    void *pinned;
    MUST(cuMemAllocHost_v2(&pinned, 10000));
    memset(pinned, 1, 10000);
    MUST(cuMemFreeHost(pinned));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
    MUST(cuMemHostRegister_v2(some, sizeof some, 0));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(some, 8, 0));
    MUST(cuMemHostUnregister(some));
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(some));
}

int main(void) {
    CUcontext context;
    CUdevice device;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGet(&device, 0));
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    scene_two_mappings();
    scene_export();
    scene_refused();
    scene_host();
    scene_illegal(context);
    scene_two_mappings();
    return 0;
}
