package main

// #include "shim.h"
import "C"

import "unsafe"

// goPoolOpen implements symmem_pool_open. domain is the group whose ranks share the pool.
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

// goPoolClose implements symmem_pool_close.
//
//export goPoolClose
func goPoolClose(pool, force C.int) C.int {
	return guard(func() error { return library.ClosePool(int(pool), force != 0) })
}

// goAlloc implements symmem_alloc. site is the number of a call site, or 0.
//
//export goAlloc
func goAlloc(
	pool C.int, bytes C.size_t, stream C.uint64_t, site C.uint32_t, address *unsafe.Pointer,
) C.int {
	return store((*uintptr)(unsafe.Pointer(address)), "the buffer", func() (uintptr, error) {
		return library.Alloc(int(pool), uint64(bytes), uintptr(stream), uint32(site))
	})
}

// goAllocOn implements symmem_alloc_on.
//
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

// goFree implements symmem_free.
//
//export goFree
func goFree(address unsafe.Pointer) C.int {
	const delay = false // symmem_free requires that all ranks free in the same order
	return guard(func() error { return library.Free(uintptr(address), delay) })
}

// goReserve implements symmem_reserve and symmem_reserve_on. If group is not 0, goReserve registers
// the memory with the group.
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

// goTrim implements symmem_trim.
//
//export goTrim
func goTrim(pool C.int, keepBytes C.size_t) C.int {
	return guard(func() error { return library.Trim(int(pool), uint64(keepBytes)) })
}

// goPoolSuspend implements symmem_pool_suspend.
//
//export goPoolSuspend
func goPoolSuspend(pool, keepContents C.int, releasedBytes *C.uint64_t) C.int {
	return guard(func() error {
		bytes, err := library.SuspendPool(int(pool), keepContents != 0)
		if err != nil {
			return err
		}

		if releasedBytes != nil { // null is permitted
			*releasedBytes = C.uint64_t(bytes)
		}

		return nil
	})
}

// goPoolResume implements symmem_pool_resume.
//
//export goPoolResume
func goPoolResume(pool C.int) C.int {
	return guard(func() error { return library.ResumePool(int(pool)) })
}
