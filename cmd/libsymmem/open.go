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
	return guarded(func() error {
		text, err := textOf(length, options)
		if err != nil {
			return err
		}
		if err := catchUp(); err != nil {
			return err
		}
		C.symmem_watch_exit()
		return library.Open([]byte(text))
	})
}

// catchUp copies environment variables that the process has set since the library was loaded, which
// is when Go reads the environment.
func catchUp() error {
	for at := C.symmem_environment(); at != nil && *at != nil; {
		name, value, _ := strings.Cut(C.GoString(*at), "=")
		if got, ok := os.LookupEnv(name); name != "" && (!ok || got != value) {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}
		at = (**C.char)(unsafe.Add(unsafe.Pointer(at), unsafe.Sizeof(*at)))
	}
	return nil
}

//export goClose
func goClose(force C.int) C.int {
	return guarded(func() error { return library.Close(force != 0) })
}

//export goIsOpen
func goIsOpen() C.int { return truth(library.IsOpen) }

//export goCallSites
func goCallSites() C.int { return truth(library.CallSites) }

// truth returns 1 or 0.
func truth(ask func() bool) C.int {
	answer := false
	if binding.Recovering(func() error { answer = ask(); return nil }) != nil || !answer {
		return 0
	}
	return 1
}

//export goDescribe
func goDescribe(size C.size_t, text *C.char, length *C.size_t) C.int {
	return give(size, text, length, library.Describe)
}
