package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

// This file implements allocators for PyTorch and for inference engines such as SGLang. A failed
// allocation returns null and stores its error for symmem_last_error.

// addressOf returns the address that alloc returns. If alloc fails or panics, addressOf returns 0
// and stores the error for the calling thread.
func addressOf(alloc func() (uintptr, error)) (address uintptr) {
	_ = store(&address, "the buffer", alloc) // after an error, address remains 0
	return address
}

// goTorchAlloc implements symmem_torch_alloc. It fails if the pool is on another device.
//
//export goTorchAlloc
func goTorchAlloc(
	pool C.int, size C.size_t, device C.int, stream unsafe.Pointer, site C.uint32_t,
) C.uintptr_t {
	return C.uintptr_t(addressOf(func() (uintptr, error) {
		if err := library.CheckDevice(int(pool), int(device)); err != nil {
			return 0, err
		}

		return library.Alloc(int(pool), uint64(size), uintptr(stream), uint32(site))
	}))
}

// goTorchFree implements symmem_torch_free.
//
//export goTorchFree
func goTorchFree(address unsafe.Pointer) {
	err := binding.CatchPanic(func() error {
		if !library.IsAnyWorldOpen() {
			return nil // a free after the last close is not an error
		}

		const delay = true // PyTorch frees in a different order on each rank
		return library.Free(uintptr(address), delay)
	})
	if err != nil {
		storeError(err)
		// symmem_torch_free returns void, so the caller needs a counter.
		counters := (*binding.Counters)(unsafe.Pointer(&C.symmem_words))
		counters.Refused.Add(1)
	}
}

// goPlugAlloc implements nccl_alloc_plug for inference engines. It opens symmem if necessary, and
// prints errors, because the engines do not read them.
//
//export goPlugAlloc
func goPlugAlloc(
	pool C.int, size C.size_t, device C.int, stream unsafe.Pointer, site C.uint32_t,
) C.uintptr_t {
	return C.uintptr_t(addressOf(func() (uintptr, error) {
		address, err := library.PlugAlloc(
			int(pool), uint64(size), int(device), uintptr(stream), uint32(site))
		if err != nil {
			fmt.Fprintf(os.Stderr, "symmem: allocating %d bytes on device %d: %v\n", size, device, err)
		}

		return address, err
	}))
}

// goPlugRegister implements nccl_allocator_register_segments_with_comm. It returns an ncclResult_t
// instead of a SYMMEM_ERR code.
//
//export goPlugRegister
func goPlugRegister(comm C.uintptr_t) C.int {
	err := binding.CatchPanic(func() error { return library.PlugRegister(uintptr(comm)) })
	if err != nil {
		storeError(err)
	}

	status := library.PlugStatus(uintptr(comm), err) // also prints err
	return C.int(status)
}

// goPlugForget implements symmem_plug_forget. Call it after ncclCommDestroy.
//
//export goPlugForget
func goPlugForget(comm C.uintptr_t) C.int {
	return guard(func() error { return library.PlugForget(uintptr(comm)) })
}
