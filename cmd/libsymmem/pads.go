package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

//export goPadOpen
func goPadOpen(group C.uint64_t, sites C.size_t, names **C.char, pad *C.uint64_t) C.int {
	return guard(func() error {
		if pad == nil {
			return nullPointerError("the address for the pad")
		}
		if names == nil && sites > 0 {
			return nullPointerError("the list of names")
		}
		if sites > binding.MaxPadSites {
			return fmt.Errorf("%d names of call sites; want at most %d: %w", uint64(sites),
				binding.MaxPadSites, symmem.ErrInvalid)
		}
		list := make([]string, sites)
		for i, name := range unsafe.Slice(names, sites) {
			list[i] = C.GoString(name)
		}
		address, err := library.OpenPad(uint64(group), list)
		*pad = C.uint64_t(address)
		return err
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
