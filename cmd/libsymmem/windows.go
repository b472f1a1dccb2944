package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// Exported functions implement symmem.h: goWindows implements symmem_windows, for example.

//export goRegisterPending
func goRegisterPending(group C.uint64_t, pool C.int, stream C.uint64_t) C.int {
	return guard(func() error {
		return library.RegisterPending(uint64(group), int(pool), uintptr(stream))
	})
}

//export goScopeEnd
func goScopeEnd(group, stream C.uint64_t, pendingCount *C.int64_t) C.int {
	return guard(func() error {
		count, err := library.ScopeEnd(uint64(group), uintptr(stream))
		if err != nil {
			return err
		}

		if pendingCount != nil { // null is permitted
			*pendingCount = C.int64_t(count)
		}

		return nil
	})
}

//export goAttach
func goAttach(
	group, comm C.uint64_t, length C.size_t, name *C.char, attachment *C.uint64_t,
) C.int {
	return store(attachment, "the attachment", func() (uint64, error) {
		text, err := textOf(length, name)
		if err != nil {
			return 0, err
		}

		return library.Attach(uint64(group), uintptr(comm), text)
	})
}

//export goDetach
func goDetach(attachment C.uint64_t, commExists C.int) C.int {
	return guard(func() error { return library.Detach(uint64(attachment), commExists != 0) })
}

// goIsSymmetric returns 1 if the range is in a window of the group, and otherwise 0.
//
//export goIsSymmetric
func goIsSymmetric(group C.uint64_t, bytes C.size_t, address unsafe.Pointer) C.int {
	return boolResult(func() bool {
		return library.IsSymmetric(uint64(group), uint64(bytes), uintptr(address))
	})
}

// goWindows stores up to capacity windows of a group, each as two numbers: its address and its size
// in bytes. It sets *count to the number of all windows.
//
//export goWindows
func goWindows(
	group C.uint64_t, capacity C.size_t, windows *C.int64_t, count *C.size_t,
) C.int {
	return guard(func() error {
		if count == nil {
			return nullPointerError("the address for the number of windows")
		}

		if windows == nil && capacity > 0 {
			return nullPointerError("the list of windows")
		}

		all, err := library.Windows(uint64(group))
		if err != nil {
			return err
		}

		copied := int(min(C.size_t(len(all)), capacity))
		if copied > 0 {
			dst := unsafe.Slice((*binding.Window)(unsafe.Pointer(windows)), copied)
			copy(dst, all)
		}

		*count = C.size_t(len(all))
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

//export goPeerAddresses
func goPeerAddresses(
	group C.uint64_t, bytes C.size_t, address unsafe.Pointer, rankCount C.size_t,
	addresses *C.uint64_t,
) C.int {
	return storeAddresses(rankCount, addresses, func() ([]uintptr, error) {
		return library.PeerAddresses(uint64(group), uint64(bytes), uintptr(address))
	})
}

//export goSignalWordsOpen
func goSignalWordsOpen(
	group C.uint64_t, wordCount, rankCount C.size_t, addresses *C.uint64_t,
) C.int {
	return storeAddresses(rankCount, addresses, func() ([]uintptr, error) {
		return library.OpenSignalWords(uint64(group), uint64(wordCount))
	})
}

//export goSignalWordsClose
func goSignalWordsClose(address unsafe.Pointer) C.int {
	return guard(func() error { return library.CloseSignalWords(uintptr(address)) })
}

// storeAddresses runs call in guard, and copies its results to the array addresses, which has space
// for rankCount addresses.
func storeAddresses(
	rankCount C.size_t, addresses *C.uint64_t, call func() ([]uintptr, error),
) C.int {
	return guard(func() error {
		if addresses == nil {
			return nullPointerError("the list of addresses")
		}

		result, err := call()
		if err != nil {
			return err
		}

		if uint64(rankCount) != uint64(len(result)) {
			return fmt.Errorf("the list has space for %d ranks; the group has %d ranks: %w", rankCount,
				len(result), symmem.ErrInvalid)
		}

		dst := unsafe.Slice(addresses, len(result))
		for rank, peerAddress := range result {
			dst[rank] = C.uint64_t(peerAddress)
		}

		return nil
	})
}

//export goPadOpen
func goPadOpen(group C.uint64_t, siteCount C.size_t, names **C.char, pad *C.uint64_t) C.int {
	return store(pad, "the pad", func() (uintptr, error) {
		if names == nil && siteCount > 0 {
			return 0, nullPointerError("the list of names")
		}

		if siteCount > binding.MaxPadSites {
			return 0, fmt.Errorf("%d names of call sites; want at most %d: %w", uint64(siteCount),
				binding.MaxPadSites, symmem.ErrInvalid)
		}

		sites := make([]string, siteCount)
		for i, name := range unsafe.Slice(names, siteCount) {
			sites[i] = C.GoString(name)
		}

		return library.OpenPad(uint64(group), sites)
	})
}

//export goPadClose
func goPadClose(pad C.uint64_t) C.int {
	return guard(func() error { return library.ClosePad(uintptr(pad)) })
}

//export goPadCheck
func goPadCheck(pad C.uint64_t) C.int {
	return guard(func() error { return library.CheckPad(uintptr(pad)) })
}

//export goPadExplain
func goPadExplain(pad C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.ExplainPad(uintptr(pad))
	})
}
