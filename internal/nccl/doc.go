// Package nccl binds the part of NCCL's interface that symmem needs, using a libnccl that it
// locates and opens at run time. Names, numbers and layouts match nccl.h (src/nccl.h.in of
// github.com/NVIDIA/nccl) from 2.27.3 to 2.32. Neither that header nor a C compiler is needed.
//
// A process must use one copy of NCCL, because passing a communicator of one copy to another
// crashes. Load therefore uses the copy that the process has already loaded, and searches for one
// only if there is none.
//
// # Threads
//
// NCCL keeps the state of groups per operating system thread, and uses the calling thread's current
// CUDA context. A goroutine therefore calls runtime.LockOSThread, sets its context, and stays on
// the thread from GroupStart to GroupEnd. A communicator must not be used concurrently, not even
// for registrations. Only CommAbort and AsyncError may be called by another thread while a call on
// the communicator blocks. Methods follow this rule unless they state otherwise.
//
// # Waiting
//
// All ranks of a communicator must make its collective calls in the same order. Calls documented as
// blocking wait for the other ranks without a deadline; only CommAbort from another thread ends the
// wait. Collective operations on streams do not block, since they only launch a kernel.
//
// # Buffers and handles
//
// Buffers must be on the communicator's device, and counts are in elements. Buffers inside a window
// permit NCCL to use its window kernels, but it does not report which kernel it chose.
//
// Handles are plain numbers, owned by the caller that created them. Calls return *Error, which
// matches the Result constants with errors.Is, or *VersionError if the library lacks a function.
package nccl
