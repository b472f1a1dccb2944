package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

//export goIsSymmetric
func goIsSymmetric(group C.uint64_t, bytes C.size_t, address unsafe.Pointer) C.int {
	return boolean(func() bool {
		return library.IsSymmetric(uint64(group), uint64(bytes), uintptr(address))
	})
}

//export goPeerAddresses
func goPeerAddresses(
	group C.uint64_t, bytes C.size_t, address unsafe.Pointer, ranks C.size_t,
	addresses *C.uint64_t,
) C.int {
	return guard(func() error {
		if addresses == nil {
			return errNull("the addresses")
		}
		found, err := library.PeerAddresses(uint64(group), uint64(bytes), uintptr(address))
		if err != nil {
			return err
		}
		if uint64(ranks) != uint64(len(found)) {
			return fmt.Errorf("addresses for %d ranks: the group has %d ranks: %w", ranks,
				len(found), symmem.ErrInvalid)
		}
		written := unsafe.Slice(addresses, len(found))
		for r, peer := range found {
			written[r] = C.uint64_t(peer)
		}
		return nil
	})
}

//export goWindows
func goWindows(
	group C.uint64_t, capacity C.size_t, ranges *C.int64_t, count *C.size_t,
) C.int {
	return guard(func() error {
		if count == nil || ranges == nil && capacity > 0 {
			return errNull("the count or the list of windows")
		}
		windows, err := library.Windows(uint64(group))
		if err != nil {
			return err
		}
		fits := min(len(windows), int(min(capacity, 1<<30)))
		if fits > 0 {
			copy(unsafe.Slice((*binding.Window)(unsafe.Pointer(ranges)), fits), windows)
		}
		*count = C.size_t(len(windows))
		return nil
	})
}

//export goLocate
func goLocate(address unsafe.Pointer, size C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(size, text, length, func() (string, error) {
		return library.Locate(uintptr(address))
	})
}

//export goExplain
func goExplain(
	group C.uint64_t, operation C.int, count C.int64_t, dataType C.int, send, recv unsafe.Pointer,
	size C.size_t, text *C.char, length *C.size_t,
) C.int {
	return copyText(size, text, length, func() (string, error) {
		return library.Explain(uint64(group), &binding.Arguments{
			Operation: int(operation), Count: int64(count), Type: int(dataType),
			Send: uintptr(send), Recv: uintptr(recv),
		})
	})
}

//export goTakeWarning
func goTakeWarning(size C.size_t, text *C.char, length *C.size_t) (code C.int) {
	library.TakeWarning(func(warning string) bool {
		code = copyText(size, text, length, func() (string, error) { return warning, nil })
		return code == C.SYMMEM_OK && text != nil
	})
	return code
}

//export goStats
func goStats(size C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(size, text, length, library.Stats)
}
