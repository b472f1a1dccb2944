package main

// #include "shim.h"
import "C"

import "unsafe"

// The exported functions of this file implement functions of symmem.h with similar names: goAlloc
// implements symmem_alloc. They return SYMMEM_OK or SYMMEM_ERR_*. A pool is passed by its number. A
// site is the number of the source line that makes the call, or 0 if it is unknown.

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
	const delay = false // callers must free in the same order on all ranks
	return guard(func() error { return library.Free(uintptr(address), delay) })
}

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
func goTrim(pool C.int, keep C.size_t) C.int {
	return guard(func() error { return library.Trim(int(pool), uint64(keep)) })
}

//export goPoolSuspend
func goPoolSuspend(pool, keep C.int, released *C.uint64_t) C.int {
	return guard(func() error {
		bytes, err := library.SuspendPool(int(pool), keep != 0)
		if err != nil {
			return err
		}
		if released != nil { // the caller may pass null
			*released = C.uint64_t(bytes)
		}
		return nil
	})
}

//export goPoolResume
func goPoolResume(pool C.int) C.int {
	return guard(func() error { return library.ResumePool(int(pool)) })
}
