package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

// Exported functions implement symmem.h: goAlloc implements symmem_alloc, for example.
// The parameter site is the number of a call site, or 0 if it is unknown.

// goPoolOpen opens a pool for the ranks of a group, whose handle is domain.
//
//export goPoolOpen
func goPoolOpen(domain C.uint64_t, length C.size_t, options *C.char, pool *C.int) C.int {
	return store(pool, "the pool", func() (int, error) {
		text, err := textOf(length, options)
		if err != nil {
			return 0, err
		}

		return library.OpenPool(uint64(domain), []byte(text))
	})
}

//export goPoolClose
func goPoolClose(pool, force C.int) C.int {
	return guard(func() error { return library.ClosePool(int(pool), force != 0) })
}

//export goPoolSuspend
func goPoolSuspend(pool, keepContents C.int, releasedBytes *C.uint64_t) C.int {
	return guard(func() error {
		released, err := library.SuspendPool(int(pool), keepContents != 0)
		if err != nil {
			return err
		}

		if releasedBytes != nil { // null is permitted
			*releasedBytes = C.uint64_t(released)
		}

		return nil
	})
}

//export goPoolResume
func goPoolResume(pool C.int) C.int {
	return guard(func() error { return library.ResumePool(int(pool)) })
}

// goReserve implements symmem_reserve, which passes 0 as the stream, and symmem_reserve_on.
//
//export goReserve
func goReserve(
	pool C.int, bytes C.size_t, stream, group C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		return library.Reserve(
			int(pool), uint64(bytes), uintptr(stream), uint64(group), uint32(site))
	})
}

//export goTrim
func goTrim(pool C.int, minMappedBytes C.size_t) C.int {
	return guard(func() error { return library.Trim(int(pool), uint64(minMappedBytes)) })
}

//export goAlloc
func goAlloc(
	pool C.int, bytes C.size_t, stream C.uint64_t, site C.uint32_t, address *unsafe.Pointer,
) C.int {
	return store((*uintptr)(unsafe.Pointer(address)), "the buffer", func() (uintptr, error) {
		return library.Alloc(int(pool), uint64(bytes), uintptr(stream), uint32(site))
	})
}

//export goAllocOn
func goAllocOn(
	pool C.int, bytes C.size_t, device C.int, stream C.uint64_t, site C.uint32_t,
	address *unsafe.Pointer,
) C.int {
	return store((*uintptr)(unsafe.Pointer(address)), "the buffer", func() (uintptr, error) {
		return library.AllocOn(
			int(pool), uint64(bytes), int(device), uintptr(stream), uint32(site))
	})
}

//export goFree
func goFree(address unsafe.Pointer) C.int {
	const delay = false // all ranks must call symmem_free in the same order
	return guard(func() error { return library.Free(uintptr(address), delay) })
}

// goTorchAlloc allocates for PyTorch. It fails if device is not that of the pool.
//
//export goTorchAlloc
func goTorchAlloc(
	pool C.int, size C.size_t, device C.int, stream unsafe.Pointer, site C.uint32_t,
) C.uintptr_t {
	return C.uintptr_t(addressOrNull(func() (uintptr, error) {
		if err := library.CheckDevice(int(pool), int(device)); err != nil {
			return 0, err
		}

		return library.Alloc(int(pool), uint64(size), uintptr(stream), uint32(site))
	}))
}

// addressOrNull returns the address from alloc. If alloc fails, addressOrNull stores the error for
// symmem_last_error and returns 0.
func addressOrNull(alloc func() (uintptr, error)) (address uintptr) {
	_ = store(&address, "the buffer", alloc)
	return address
}

// goTorchFree frees for PyTorch. It counts failed frees, because it cannot return a code.
//
//export goTorchFree
func goTorchFree(address unsafe.Pointer) {
	err := binding.CatchPanic(func() error {
		if !library.IsAnyWorldOpen() {
			return nil // frees after the last close are permitted
		}

		const delay = true // PyTorch frees in a different order on each rank
		return library.Free(uintptr(address), delay)
	})
	if err != nil {
		storeError(err)
		counters().Refused.Add(1)
	}
}

// goPlugAlloc implements nccl_alloc_plug, the allocator of inference engines such as SGLang. The
// engines ignore errors, so goPlugAlloc prints them.
//
//export goPlugAlloc
func goPlugAlloc(
	pool C.int, size C.size_t, device C.int, stream unsafe.Pointer, site C.uint32_t,
) C.uintptr_t {
	return C.uintptr_t(addressOrNull(func() (uintptr, error) {
		address, err := library.PlugAlloc(
			int(pool), uint64(size), int(device), uintptr(stream), uint32(site))
		if err != nil {
			fmt.Fprintf(os.Stderr, "symmem: allocating %d bytes on device %d: %v\n", size, device, err)
		}

		return address, err
	}))
}

// goPlugRegister implements nccl_allocator_register_segments_with_comm: it registers the new memory
// of pool 0 with an ncclComm_t, and returns an ncclResult_t.
//
//export goPlugRegister
func goPlugRegister(comm C.uintptr_t) C.int {
	err := binding.CatchPanic(func() error { return library.PlugRegister(uintptr(comm)) })
	if err != nil {
		storeError(err)
	}

	return C.int(library.PlugStatus(uintptr(comm), err)) // also prints err
}

// goPlugForget forgets a destroyed ncclComm_t.
//
//export goPlugForget
func goPlugForget(comm C.uintptr_t) C.int {
	return guard(func() error { return library.PlugForget(uintptr(comm)) })
}

//export goLocate
func goLocate(address unsafe.Pointer, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.Locate(uintptr(address))
	})
}
