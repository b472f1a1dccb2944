package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

//export goCall
func goCall(call *C.struct_symmem_call, site C.uint32_t) C.int {
	return guard(func() error {
		a := binding.Arguments{
			Operation: int(call.operation), Count: int64(call.count), Type: int(call._type),
			Op: int(call.op), Factor: float64(call.factor), Root: int(call.root),
			Tag: int(call.tag), Path: int(call.path),
			Send: uintptr(call.send), Recv: uintptr(call.recv), Stream: uintptr(call.stream),
			Site: uint32(site), Wait: call.flags&C.SYMMEM_CALL_WAIT != 0,
		}
		if call.flags&^C.SYMMEM_CALL_WAIT != 0 {
			return fmt.Errorf("flags %#x: %w", call.flags, symmem.ErrInvalid)
		}
		if from := call.from; from != nil {
			a.From = func(rank int) { *from = C.int32_t(rank) }
		}
		if call.send_counts != nil || call.recv_counts != nil {
			var err error
			if a.Splits, err = splitsOf(call); err != nil {
				return err
			}
		}
		return library.Do(uint64(call.group), &a)
	})
}

// splitsOf returns a copy of the splits of a call.
func splitsOf(call *C.struct_symmem_call) (*symmem.Splits, error) {
	if call.ranks == 0 || call.ranks > maxRanks {
		return nil, fmt.Errorf("splits for %d ranks: %w", call.ranks, symmem.ErrInvalid)
	}
	return &symmem.Splits{
		SendCounts:  numbers(call.ranks, call.send_counts),
		SendOffsets: numbers(call.ranks, call.send_offsets),
		RecvCounts:  numbers(call.ranks, call.recv_counts),
		RecvOffsets: numbers(call.ranks, call.recv_offsets),
	}, nil
}

// numbers returns a copy of a list passed by C, or nil for a null pointer.
func numbers(count C.size_t, list *C.int64_t) []int64 {
	if list == nil {
		return nil
	}
	all := make([]int64, count)
	for i, n := range unsafe.Slice(list, int(count)) {
		all[i] = int64(n)
	}
	return all
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
