package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

// Other libraries can use symmem as their allocator. PyTorch allocates memory with goTorchAlloc,
// and frees it with goTorchFree. Inference engines use goPlugAlloc, and register the memory with
// their NCCL communicators by goPlugRegister.
//
// An allocation returns an address instead of a code. If it fails, the address is 0, and the error
// is stored for the calling thread, which can read it with symmem_last_error.

// addressOf calls alloc and returns the address, or 0 after an error, which it stores.
func addressOf(alloc func() (uintptr, error)) (address uintptr) {
	store(&address, "the buffer", alloc)
	return address
}

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

//export goTorchFree
func goTorchFree(address unsafe.Pointer) {
	err := binding.CatchPanic(func() error {
		if !library.IsAnyWorldOpen() {
			return nil // closing the last world has already returned the memory
		}
		const delay = true // PyTorch frees in an order that differs between ranks
		return library.Free(uintptr(address), delay)
	})
	if err != nil {
		storeError(err)
		// goTorchFree has no result, so this counter shows that it has failed.
		counters := (*binding.Counters)(unsafe.Pointer(&C.symmem_words))
		counters.Refused.Add(1)
	}
}

// goPlugAlloc is like goTorchAlloc, but opens symmem if necessary, and prints errors.
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

// goPlugRegister registers the memory with an ncclComm_t. It returns an ncclResult_t, not a code of
// symmem.h.
//
//export goPlugRegister
func goPlugRegister(comm C.uintptr_t) C.int {
	err := binding.CatchPanic(func() error { return library.PlugRegister(uintptr(comm)) })
	if err != nil {
		storeError(err)
	}
	status := library.PlugStatus(uintptr(comm), err)
	return C.int(status)
}

// goPlugForget forgets an ncclComm_t that its owner has destroyed.
//
//export goPlugForget
func goPlugForget(comm C.uintptr_t) C.int {
	return guard(func() error { return library.PlugForget(uintptr(comm)) })
}
