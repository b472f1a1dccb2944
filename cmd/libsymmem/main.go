// Command libsymmem implements the C interface of symmem. It is built with -buildmode=c-shared.
// symmem.h declares and documents the functions. README.md describes the build and the effects of
// the Go runtime on the process.
//
// The C files contain the parts that must work without the Go runtime: fork detection, per-thread
// state and the shared words. Each Go function decodes its arguments, calls package binding and
// encodes the result.
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

// library serves all calls of the process.
var library = newLibrary()

func newLibrary() *binding.Library {
	sockets := (*uint64)(unsafe.Pointer(&C.symmem_sockets))
	sys.ShareSockets(unsafe.Slice(sockets, C.SYMMEM_SOCKETS))
	return binding.New(
		(*binding.Words)(unsafe.Pointer(&C.symmem_words)),
		func(text string) { fmt.Fprintln(os.Stderr, text) },
	)
}

// main is never called, but the linker requires it.
func main() {}
