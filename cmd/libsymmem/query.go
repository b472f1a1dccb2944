package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// The exported functions of this file implement functions of symmem.h with similar names: goStats
// implements symmem_stats. Except for goIsSymmetric, which returns 1 or 0, they return SYMMEM_OK or
// SYMMEM_ERR_*. Errors other than SYMMEM_ERR_SHORT are stored for the calling thread, which can
// read them with symmem_last_error.

//export goIsSymmetric
func goIsSymmetric(group C.uint64_t, bytes C.size_t, address unsafe.Pointer) C.int {
	return boolResult(func() bool {
		return library.IsSymmetric(uint64(group), uint64(bytes), uintptr(address))
	})
}

//export goPeerAddresses
func goPeerAddresses(
	group C.uint64_t, bytes C.size_t, address unsafe.Pointer, ranks C.size_t,
	addresses *C.uint64_t,
) C.int {
	return storeAddresses(ranks, addresses, func() ([]uintptr, error) {
		return library.PeerAddresses(uint64(group), uint64(bytes), uintptr(address))
	})
}

// storeAddresses runs call, which returns an address for each rank of a group, and stores these in
// the caller's list. The list has space for the given number of ranks.
func storeAddresses(
	ranks C.size_t, addresses *C.uint64_t, call func() ([]uintptr, error),
) C.int {
	return guard(func() error {
		if addresses == nil {
			return nullPointerError("the list of addresses")
		}
		result, err := call()
		if err != nil {
			return err
		}
		hasRightSize := uint64(ranks) == uint64(len(result))
		if !hasRightSize {
			return fmt.Errorf("the list has space for %d ranks; the group has %d ranks: %w", ranks,
				len(result), symmem.ErrInvalid)
		}
		dst := unsafe.Slice(addresses, len(result))
		for rank, peerAddress := range result {
			dst[rank] = C.uint64_t(peerAddress)
		}
		return nil
	})
}

//export goNCCLWindow
func goNCCLWindow(
	group C.uint64_t, bytes C.size_t, address unsafe.Pointer, comm, window, offset *C.uint64_t,
) C.int {
	return guard(func() error {
		switch {
		case comm == nil:
			return nullPointerError("the address for the communicator")
		case window == nil:
			return nullPointerError("the address for the window")
		case offset == nil:
			return nullPointerError("the address for the offset")
		}
		w, err := library.NCCLWindow(uint64(group), uint64(bytes), uintptr(address))
		if err != nil {
			return err
		}
		*comm = C.uint64_t(w.Communicator)
		*window = C.uint64_t(w.Window)
		*offset = C.uint64_t(w.Offset)
		return nil
	})
}

//export goSignalWordsOpen
func goSignalWordsOpen(
	group C.uint64_t, words, ranks C.size_t, addresses *C.uint64_t,
) C.int {
	return storeAddresses(ranks, addresses, func() ([]uintptr, error) {
		return library.OpenSignalWords(uint64(group), uint64(words))
	})
}

//export goSignalWordsClose
func goSignalWordsClose(address unsafe.Pointer) C.int {
	return guard(func() error { return library.CloseSignalWords(uintptr(address)) })
}

// goWindows copies the windows of a group to ranges, which has space for capacity windows. A window
// consists of two integers: an address and a size in bytes. goWindows stores the number of windows
// at count. If this is larger than capacity, goWindows copies only the first windows.
//
//export goWindows
func goWindows(
	group C.uint64_t, capacity C.size_t, ranges *C.int64_t, count *C.size_t,
) C.int {
	return guard(func() error {
		if count == nil {
			return nullPointerError("the address for the number of windows")
		}
		if ranges == nil && capacity > 0 {
			return nullPointerError("the list of windows")
		}
		windows, err := library.Windows(uint64(group))
		if err != nil {
			return err
		}
		const maxCapacity = 1 << 30 // so that it fits into an int
		copied := min(len(windows), int(min(capacity, maxCapacity)))
		if copied > 0 {
			// In memory, a binding.Window consists of the two integers.
			dst := unsafe.Slice((*binding.Window)(unsafe.Pointer(ranges)), copied)
			copy(dst, windows)
		}
		*count = C.size_t(len(windows))
		return nil
	})
}

//export goLocate
func goLocate(address unsafe.Pointer, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.Locate(uintptr(address))
	})
}

//export goExplain
func goExplain(
	group C.uint64_t, operation C.int, count C.int64_t, dataType C.int, send, recv unsafe.Pointer,
	capacity C.size_t, text *C.char, length *C.size_t,
) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.Explain(uint64(group), &binding.Arguments{
			Operation: int(operation), Count: int64(count), Type: int(dataType),
			Send: uintptr(send), Recv: uintptr(recv),
		})
	})
}

// goTakeWarning copies the oldest warning to text and removes it. If text is null, has no space or
// is too short, the warning remains.
//
//export goTakeWarning
func goTakeWarning(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	code := C.int(C.SYMMEM_OK)
	library.TakeWarning(func(warning string) bool {
		code = copyText(capacity, text, length, func() (string, error) { return warning, nil })
		onlyLength := text == nil || capacity == 0
		return code == C.SYMMEM_OK && !onlyLength
	})
	return code
}

//export goStats
func goStats(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, library.Stats)
}
