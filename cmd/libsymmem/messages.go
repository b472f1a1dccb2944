package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

//export goMessage
func goMessage(
	group C.uint64_t, operation C.int, count C.int64_t, dataType, peer, tag C.int,
	buffer unsafe.Pointer, from *C.int32_t, stream C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		c := &binding.Arguments{
			Operation: int(operation), Count: int64(count), Type: int(dataType), Root: int(peer),
			Tag: int(tag), Stream: uintptr(stream), Site: uint32(site),
			// A send uses only Send. A receive uses only Recv.
			Send: uintptr(buffer), Recv: uintptr(buffer),
		}
		if from != nil {
			c.From = func(rank int) { *from = C.int32_t(rank) }
		}
		return library.Do(uint64(group), c)
	})
}

//export goAllToAllV
func goAllToAllV(
	group C.uint64_t, ranks C.size_t, sendCounts, sendOffsets, recvCounts, recvOffsets *C.int64_t,
	dataType C.int, send, recv unsafe.Pointer, stream C.uint64_t, site C.uint32_t,
) C.int {
	return guard(func() error {
		if sendCounts == nil || recvCounts == nil {
			return errNull("the counts")
		}
		if ranks == 0 || ranks > maxRanks {
			return fmt.Errorf("splits for %d ranks: %w", ranks, symmem.ErrInvalid)
		}
		return library.Do(uint64(group), &binding.Arguments{
			Operation: C.SYMMEM_ALL_TO_ALL_V, Type: int(dataType), Send: uintptr(send),
			Recv: uintptr(recv), Stream: uintptr(stream), Site: uint32(site),
			Splits: &symmem.Splits{
				SendCounts: numbers(ranks, sendCounts), SendOffsets: numbers(ranks, sendOffsets),
				RecvCounts: numbers(ranks, recvCounts), RecvOffsets: numbers(ranks, recvOffsets),
			},
		})
	})
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
