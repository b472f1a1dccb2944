package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// goIsSymmetric implements symmem_is_symmetric. It returns 1 or 0.
//
//export goIsSymmetric
func goIsSymmetric(group C.uint64_t, bytes C.size_t, address unsafe.Pointer) C.int {
	return boolResult(func() bool {
		return library.IsSymmetric(uint64(group), uint64(bytes), uintptr(address))
	})
}

// goPeerAddresses implements symmem_peer_addresses.
//
//export goPeerAddresses
func goPeerAddresses(
	group C.uint64_t, bytes C.size_t, address unsafe.Pointer, ranks C.size_t,
	addresses *C.uint64_t,
) C.int {
	return storeAddresses(ranks, addresses, func() ([]uintptr, error) {
		return library.PeerAddresses(uint64(group), uint64(bytes), uintptr(address))
	})
}

// storeAddresses runs call in guard and copies the result to addresses, an array of length ranks.
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

		if uint64(ranks) != uint64(len(result)) {
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

// goNCCLWindow implements symmem_nccl_window.
//
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

		location, err := library.NCCLWindow(uint64(group), uint64(bytes), uintptr(address))
		if err != nil {
			return err
		}

		*comm = C.uint64_t(location.Communicator)
		*window = C.uint64_t(location.Window)
		*offset = C.uint64_t(location.Offset)
		return nil
	})
}

// goSignalWordsOpen implements symmem_signal_words_open.
//
//export goSignalWordsOpen
func goSignalWordsOpen(
	group C.uint64_t, words, ranks C.size_t, addresses *C.uint64_t,
) C.int {
	return storeAddresses(ranks, addresses, func() ([]uintptr, error) {
		return library.OpenSignalWords(uint64(group), uint64(words))
	})
}

// goSignalWordsClose implements symmem_signal_words_close.
//
//export goSignalWordsClose
func goSignalWordsClose(address unsafe.Pointer) C.int {
	return guard(func() error { return library.CloseSignalWords(uintptr(address)) })
}

// goWindows implements symmem_windows. It copies the address and the size in bytes of up to
// capacity windows to ranges, and sets *count to the number of all windows.
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

		copied := int(min(C.size_t(len(windows)), capacity))
		if copied > 0 {
			// A binding.Window has the same layout as two integers in C.
			dst := unsafe.Slice((*binding.Window)(unsafe.Pointer(ranges)), copied)
			copy(dst, windows)
		}

		*count = C.size_t(len(windows))
		return nil
	})
}

// goLocate implements symmem_locate.
//
//export goLocate
func goLocate(address unsafe.Pointer, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.Locate(uintptr(address))
	})
}

// goExplain implements symmem_explain.
//
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

// goTakeWarning implements symmem_take_warning. It removes the oldest warning if the text buffer
// has space for it.
//
//export goTakeWarning
func goTakeWarning(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	code := C.int(C.SYMMEM_OK)
	library.TakeWarning(func(warning string) bool {
		code = copyText(capacity, text, length, func() (string, error) { return warning, nil })
		hasBuffer := text != nil && capacity > 0 // otherwise, the caller asks for the length
		return code == C.SYMMEM_OK && hasBuffer
	})
	return code
}

// goStats implements symmem_stats.
//
//export goStats
func goStats(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, library.Stats)
}
