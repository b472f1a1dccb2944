// Command libsymmem implements symmem's C interface and is built with -buildmode=c-shared. symmem.h
// declares and documents the functions, and README.md describes the build.
//
// The C files contain the parts that must work without the Go runtime: fork detection, per-thread
// state and the shared words. Each Go function decodes its arguments, calls package binding and
// encodes the result.
//
// # Rules of the interface
//
//   - symmem.h is written by hand and only grows; the header that cgo writes is not installed.
//   - No pointer to Go memory crosses the interface.
//   - New fields of struct symmem_call are added at its end. Its first field holds the size of the
//     struct in the caller's version of symmem.h.
//   - Allocation registers nothing and does not wait for other ranks, so allocators may call it
//     with locks held. The allocation's own lock is held while a segment is mapped.
//
// # Go in a foreign process
//
// The names in parentheses are the tests, or the scenarios of TestCProgram, that cover each item.
//
//   - After a fork, the child has only one thread, in which the Go runtime would hang. Therefore, a
//     pthread_atfork handler marks the child, so that every function returns SYMMEM_ERR_FORKED
//     there (forks).
//   - A forked child would keep its parent's sockets open, so that other ranks would not notice
//     when the parent exits. The handler closes them; see CloseInForks in internal/sys
//     (TestForkedChildClosesConnections).
//   - A panic that reached C would abort the process, so every function recovers and returns
//     SYMMEM_ERR_PANIC with the stack (panics).
//   - Go installs signal handlers. They call the handlers that existed before and, because nothing
//     imports os/signal, do not replace handlers that are later installed with SA_ONSTACK, as
//     Python does. SIGPROF interrupts system calls, which are restarted (signals).
//   - Go reads the environment only once, so symmem_open reads C's environment again, and accepts
//     variables in its options (reopen).
//   - Many ranks may share a machine, and each has a Go scheduler. The scheduler runs Go code on at
//     most two threads rather than one per processor, unless SYMMEM_GOMAXPROCS or the option
//     gomaxprocs sets another number.
//   - Per-thread state in Go would make each foreign thread's first call take microseconds, so a
//     thread's pool, call site and error are stored in C (threads).
//   - CUDA's current device is per thread, so work for a device runs on a thread with the device's
//     context, and allocation checks the device (plug).
//   - Static destructors may free memory after Go or CUDA has shut down, so frees do nothing once
//     exit has begun (exit-live).
//   - A process can exit while one of its threads waits in a call. The exit does not wait for that
//     thread, and other ranks get SYMMEM_ERR_RANK_LOST (exit-waiting).
//   - Queries and registrations would invalidate another library's capture. Calls therefore check
//     whether their stream is being captured: if so, collectives are recorded in the graph, and
//     registration returns SYMMEM_ERR_CAPTURING (capture).
//   - A communicator may be destroyed before symmem is closed. The caller of symmem_detach
//     states whether the communicator is still alive, and closing the group detaches it without
//     calling NCCL (attach).
//   - Frees arrive in the order of addresses, which differs between ranks, so they are sorted
//     before they take effect (freed-order).
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
		(*binding.Words)(unsafe.Pointer(&C.symmem_words)),
		func(text string) { fmt.Fprintln(os.Stderr, text) },
	)
}

// main is never called, but the linker requires it.
func main() {}
