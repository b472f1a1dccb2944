package main

// #include "shim.h"
import "C"

import (
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

//export goCollective
func goCollective(
	group C.uint64_t, operation C.int, count C.int64_t, dataType, op C.int, factor C.double,
	root, path C.int, send, recv unsafe.Pointer, stream C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		return library.Do(uint64(group), &binding.Arguments{
			Operation: int(operation), Count: int64(count), Type: int(dataType), Op: int(op),
			Factor: float64(factor), Root: int(root), Path: int(path), Send: uintptr(send),
			Recv: uintptr(recv), Stream: uintptr(stream), Site: uint32(site),
		})
	})
}

//export goNorm
func goNorm(
	group C.uint64_t, rows, hidden C.int64_t, epsilon C.float,
	input, residual, weight, output unsafe.Pointer, stream C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		return library.Norm(uint64(group), &binding.NormArguments{
			Rows: int64(rows), Hidden: int64(hidden), Epsilon: float32(epsilon),
			Input: uintptr(input), Residual: uintptr(residual), Weight: uintptr(weight),
			Output: uintptr(output), Stream: uintptr(stream), Site: uint32(site),
		})
	})
}

//export goSynchronize
func goSynchronize(stream C.uint64_t) C.int {
	return guard(func() error { return library.Synchronize(uintptr(stream)) })
}

//export goForget
func goForget(stream C.uint64_t) C.int {
	return guard(func() error { return library.Forget(uintptr(stream)) })
}

//export goIdle
func goIdle(yes C.int) C.int {
	return guard(func() error { return library.Idle(yes != 0) })
}
