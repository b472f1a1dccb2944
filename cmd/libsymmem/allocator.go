package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

// addressOf calls alloc and returns the address. If alloc fails, addressOf returns 0 and stores the
// error for the calling thread.
func addressOf(alloc func() (uintptr, error)) (address uintptr) {
	store(&address, "the buffer", alloc)
	return address
}

// goTorchAlloc and goTorchFree are the functions of a pluggable allocator of PyTorch.
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

//export goTorchFree
func goTorchFree(address unsafe.Pointer) {
	err := binding.CatchPanic(func() error {
		if !library.IsAnyWorldOpen() {
			return nil // the last close has returned the memory
		}
		const delay = true // PyTorch frees in an order that differs between ranks
		return library.Free(uintptr(address), delay)
	})
	if err != nil { // the function has no result, so the counter shows that it has failed
		storeError(err)
		counters := (*binding.Counters)(unsafe.Pointer(&C.symmem_words))
		counters.Refused.Add(1)
	}
}

// goPlugAlloc is like goTorchAlloc, but can open symmem, and prints errors.
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

// goPlugRegister returns an ncclResult_t instead of a code of symmem.h.
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

//export goPlugForget
func goPlugForget(comm C.uintptr_t) C.int {
	return guard(func() error { return library.PlugForget(uintptr(comm)) })
}
