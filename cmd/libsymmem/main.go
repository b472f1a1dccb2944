// Command libsymmem implements symmem's C interface and is built with -buildmode=c-shared. symmem.h
// declares and documents the functions, and README.md describes the build.
//
// The C files contain the parts that must work without the Go runtime: fork detection, per-thread
// state and counters. Each Go function decodes its arguments, calls package binding and encodes the
// result.
//
// # Rules of the interface
//
//   - symmem.h is written by hand and only grows; the header that cgo writes is not installed.
//   - No pointer to Go memory crosses the interface.
//   - New fields of struct symmem_call are added at its end. Its first field holds the size of the
//     struct in the caller's version of symmem.h.
//   - Allocation does not register memory or wait for other ranks, so allocators may call it with
//     locks held.
//
// # Go in a foreign process
//
// Each item names the test, or the scenario of TestCProgram, that covers it.
//
//   - A forked child has only one thread, in which the Go runtime would hang. A pthread_atfork
//     handler marks the child, and every function then returns SYMMEM_ERR_FORKED. Scenario: forks.
//   - A forked child would keep its parent's sockets open, which would hide the parent's exit from
//     other ranks. The handler closes the sockets. Test: TestForkedChildClosesConnections.
//   - A panic that reached C would abort the process, so every function recovers and returns
//     SYMMEM_ERR_PANIC. Scenario: panics.
//   - Go's signal handlers call the handlers that existed before. They do not replace later ones,
//     because nothing imports os/signal. Scenario: signals.
//   - Go reads the environment only once, so symmem_open reads C's environment again. Scenario:
//     reopen.
//   - Go has no fast per-thread state, so a thread's pool, call site and error are stored in C.
//     Scenario: threads.
//   - CUDA's current device is per thread, so work for a device runs on a thread with the device's
//     context, and allocation checks the device. Scenario: plug.
//   - Static destructors may free memory after Go or CUDA has shut down, so frees do nothing once
//     the process exits. Scenario: exit-live.
//   - A process can exit while one of its threads waits in a call. Other ranks then get
//     SYMMEM_ERR_RANK_LOST. Scenario: exit-waiting.
//   - Queries and registrations would invalidate another library's capture. During a capture,
//     collectives are recorded in the graph, and registration returns SYMMEM_ERR_CAPTURING.
//     Scenario: capture.
//   - A communicator may be destroyed before symmem is closed. The caller of symmem_detach passes
//     whether it still exists, and closing a group does not call NCCL for it. Scenario: attach.
//   - Frees arrive in the order of addresses, which differs between ranks, so they are sorted
//     before they take effect. Scenario: freed-order.
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
	return binding.New(
		(*binding.Counters)(unsafe.Pointer(&C.symmem_words)),
		func(text string) { fmt.Fprintln(os.Stderr, text) },
	)
}

// main is never called, but the linker requires it.
func main() {}
