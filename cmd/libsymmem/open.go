package main

// #include "shim.h"
import "C"

import (
	"os"
	"strings"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

// goOpen implements symmem_open.
//
//export goOpen
func goOpen(length C.size_t, options *C.char) C.int {
	return guard(func() error {
		text, err := prepareOpen(length, options)
		if err != nil {
			return err
		}

		return library.Open(text)
	})
}

// prepareOpen copies the options, and prepares the process for opening symmem.
func prepareOpen(length C.size_t, options *C.char) ([]byte, error) {
	text, err := textOf(length, options)
	if err != nil {
		return nil, err
	}

	C.symmem_watch_exit() // makes frees do nothing while the process exits
	if err := importEnvironment(); err != nil {
		return nil, err
	}

	return []byte(text), nil
}

// importEnvironment updates Go's copy of the environment, made when the library was loaded.
func importEnvironment() error {
	entry := C.symmem_environment() // a null-terminated array of strings such as "NAME=value"
	for entry != nil && *entry != nil {
		name, value, _ := strings.Cut(C.GoString(*entry), "=")
		old, isSet := os.LookupEnv(name)
		isChanged := !isSet || old != value
		if name != "" && isChanged {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}

		next := unsafe.Add(unsafe.Pointer(entry), unsafe.Sizeof(*entry))
		entry = (**C.char)(next)
	}

	return nil
}

// goClose implements symmem_close.
//
//export goClose
func goClose(force C.int) C.int {
	return guard(func() error { return library.Close(force != 0) })
}

// goIsOpen implements symmem_is_open.
//
//export goIsOpen
func goIsOpen() C.int { return boolResult(library.IsOpen) }

// goCallSites implements symmem_callsites.
//
//export goCallSites
func goCallSites() C.int { return boolResult(library.RecordsCallSites) }

// boolResult returns 1 if query returns true, and 0 if query returns false or panics.
func boolResult(query func() bool) C.int {
	answer := false
	_ = binding.CatchPanic(func() error { // after a panic, answer remains false
		answer = query()
		return nil
	})
	if answer {
		return 1
	}

	return 0
}

// goDescribe implements symmem_describe.
//
//export goDescribe
func goDescribe(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, library.Describe)
}
