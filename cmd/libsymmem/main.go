// Command libsymmem implements symmem's C interface. It is built with -buildmode=c-shared. symmem.h
// declares and documents the functions. README.md describes the build.
//
// The C files contain the parts that must work without the Go runtime: fork detection, per-thread
// state and the shared words. Each Go function decodes its arguments, calls package binding and
// encodes the result.
//
// # Rules of the interface
//
//   - symmem.h is written by hand and only grows; the header that cgo writes is not installed.
//   - No pointer to Go memory crosses the interface.
//   - struct symmem_call grows at its end. Its first field is the size that the caller knows.
//   - Allocation registers nothing and does not wait for other ranks, so allocators may call it
//     with locks held. Its lock is held while a segment is mapped.
//
// # Go in a foreign process
//
// The names in parentheses are scenarios of TestCProgram, or tests.
//
//   - After fork the child has one thread, and Go hangs in it. A pthread_atfork handler marks the
//     child, in which every function returns SYMMEM_ERR_FORKED (forks).
//   - A forked child keeps sockets, so other ranks would not see that its parent ended. The handler
//     closes them: CloseInForks of internal/sys (TestForkedChildClosesConnections).
//   - A panic in C aborts the process. Every function recovers and returns SYMMEM_ERR_PANIC with
//     the stack (panics).
//   - Go installs signal handlers. Nothing imports os/signal; existing handlers are called, and
//     later ones with SA_ONSTACK, as Python sets them, are not replaced. SIGPROF interrupts system
//     calls, which are restarted (signals).
//   - Go reads the environment once. symmem_open reads C's environment again, and takes variables
//     in its options (reopen).
//   - Each rank has a Go scheduler, with two threads instead of one for each processor, unless
//     SYMMEM_GOMAXPROCS or the option sets another number.
//   - Setup in Go would make each foreign thread's first call take microseconds. So no Go state is
//     kept per thread; a thread's pool, call site and error are stored in C (threads).
//   - CUDA's current device belongs to a thread. Work for a device runs on a thread with its
//     context, and allocation checks the device (plug).
//   - Static destructors free after Go or CUDA has ended. Frees do nothing once exit has begun
//     (exit-live).
//   - If the process exits while a call waits, nothing waits for the threads. Other ranks get
//     SYMMEM_ERR_RANK_LOST (exit-waiting).
//   - Queries and registrations would invalidate captures of another library. Streams are checked:
//     collectives are recorded, and registration returns SYMMEM_ERR_CAPTURING (capture).
//   - Communicators may be destroyed before symmem is closed. symmem_detach has an argument alive;
//     closing the group detaches without calling NCCL (attach).
//   - Frees in the order of addresses would differ between ranks, so frees are sorted before they
//     take effect (freed-order).
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
