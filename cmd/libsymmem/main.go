// Command libsymmem is the C interface of symmem, for programs that are not written in Go. It is
// built with -buildmode=c-shared; symmem.h declares and documents it, and README.md says how to
// build it and what the Go runtime means for the process.
//
// The C files hold the code that must work without Go: the check for forks, the state of threads,
// the shared words. Functions in Go decode their arguments, call package binding, and encode the
// result.
package main

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Wno-unused-parameter -fvisibility=hidden -O2
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
	"symmem/internal/sys"
)

// library is the one of the process.
var library = newLibrary()

func newLibrary() *binding.Library {
	sockets := (*uint64)(unsafe.Pointer(&C.symmem_sockets))
	sys.ShareSockets(unsafe.Slice(sockets, C.SYMMEM_SOCKETS))
	return binding.New(
		(*binding.Words)(unsafe.Pointer(&C.symmem_words)),
		func(text string) { fmt.Fprintln(os.Stderr, text) },
	)
}

// main is never called: a shared library has none.
func main() {}
