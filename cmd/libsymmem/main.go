// Command libsymmem implements symmem's C interface and is built with -buildmode=c-shared. symmem.h
// declares and documents the functions. The C files contain the parts that must work without the Go
// runtime: fork detection, per-thread state and counters. Each Go function decodes its arguments,
// calls package binding and encodes the result.
//
// symmem.h only grows: new fields of struct symmem_call are added at its end. No pointer to Go
// memory crosses the interface. Allocation does not register memory or wait for other ranks, so
// allocators may call it with locks held.
//
// # Go in a foreign process
//
// Each rule names the scenario of TestCProgram that tests it.
//
//   - forks: The Go runtime would hang in a forked child, so functions return SYMMEM_ERR_FORKED
//     there. The child closes its parent's sockets, so that other ranks notice the parent's exit.
//   - panics: Panics must not reach C. Functions return SYMMEM_ERR_PANIC.
//   - signals: Go's signal handlers call earlier handlers, and do not replace later ones, because
//     nothing imports os/signal.
//   - reopen: Go reads the environment only once, so symmem_open reads C's environment again.
//   - threads: A thread's pool, call site and error are stored in C, because Go has no fast
//     per-thread state.
//   - plug: CUDA's current device is per thread, so work runs on a thread with the device's
//     context.
//   - exit-live: Static destructors may free memory after Go or CUDA has shut down, so frees do
//     nothing once the process exits.
//   - capture: During another library's capture, collectives are recorded in the graph, and
//     registration returns SYMMEM_ERR_CAPTURING.
//   - attach: A communicator may be destroyed before symmem is closed, so closing a group does not
//     call NCCL for it.
//   - freed-order: Frees arrive in an order that differs between ranks, so they are sorted first.
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
	sys.SetSocketTable(unsafe.Slice(sockets, C.SYMMEM_SOCKETS))
	return binding.New(counters(), func(text string) { fmt.Fprintln(os.Stderr, text) })
}

// counters returns the memory from which C callers read the counters.
func counters() *binding.Counters { return (*binding.Counters)(unsafe.Pointer(&C.symmem_words)) }

// main is never called, but the linker requires it.
func main() {}
