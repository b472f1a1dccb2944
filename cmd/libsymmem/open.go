package main

// #include "shim.h"
import "C"

import (
	"os"
	"strings"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

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

func prepareOpen(length C.size_t, options *C.char) ([]byte, error) {
	text, err := textOf(length, options)
	if err != nil {
		return nil, err
	}
	C.symmem_watch_exit()
	return []byte(text), importEnvironment()
}

// importEnvironment copies C's environment to Go, which reads it only when the library is loaded.
func importEnvironment() error {
	for entry := C.symmem_environment(); entry != nil && *entry != nil; {
		name, value, _ := strings.Cut(C.GoString(*entry), "=")
		if old, ok := os.LookupEnv(name); name != "" && (!ok || old != value) {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		entry = (**C.char)(unsafe.Add(unsafe.Pointer(entry), unsafe.Sizeof(*entry)))
	}
	return nil
}

//export goClose
func goClose(force C.int) C.int {
	return guard(func() error { return library.Close(force != 0) })
}

//export goIsOpen
func goIsOpen() C.int { return boolResult(library.IsOpen) }

//export goCallSites
func goCallSites() C.int { return boolResult(library.RecordsCallSites) }

// boolResult returns 1 if query returns true, and 0 if query returns false or panics.
func boolResult(query func() bool) C.int {
	answer := false
	if binding.CatchPanic(func() error { answer = query(); return nil }) != nil || !answer {
		return 0
	}
	return 1
}

//export goDescribe
func goDescribe(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, library.Describe)
}
