/* Allocator functions for PyTorch and SGLang, which call them with locks held. */
#include "_cgo_export.h"
#include "shim.h"
#include "state.h"

static void *from_pool(int pool, size_t size, int device, void *stream) {
	if (__builtin_expect(symmem_forked, 0)) return 0;
	return (void *)goTorchAlloc(pool, size, device, stream, symmem_current_site());
}

API void *symmem_torch_alloc(size_t size, int device, void *stream) {
	return from_pool(symmem_selected(), size, device, stream);
}

API void symmem_torch_free(void *ptr, size_t size, int device, void *stream) {
	(void)size, (void)device, (void)stream;
	if (symmem_forked || symmem_exiting || !ptr) return;
	goTorchFree(ptr);
}

#define POOL(n)                                                                                    \
	API void *symmem_torch_alloc_##n(size_t size, int device, void *stream) {                      \
		return from_pool(n, size, device, stream);                                                 \
	}

POOL(0) POOL(1) POOL(2) POOL(3) POOL(4) POOL(5) POOL(6) POOL(7)
POOL(8) POOL(9) POOL(10) POOL(11) POOL(12) POOL(13) POOL(14) POOL(15)

API void *nccl_alloc_plug(size_t size, int device, void *stream) {
	if (__builtin_expect(symmem_forked, 0)) return 0;
	return (void *)goPlugAlloc(symmem_selected(), size, device, stream, symmem_current_site());
}

API void nccl_free_plug(void *ptr, size_t size, int device, void *stream) {
	symmem_torch_free(ptr, size, device, stream);
}

/* 5 is ncclInvalidUsage. */
API int nccl_allocator_register_segments_with_comm(uintptr_t comm) {
	return symmem_forked ? 5 : goPlugRegister(comm);
}

API int symmem_plug_forget(uintptr_t comm) {
	return symmem_forked ? SYMMEM_ERR_FORKED : goPlugForget(comm);
}
