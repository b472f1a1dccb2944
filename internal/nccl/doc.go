// Package nccl binds the part of NCCL's interface that symmem needs. It locates libnccl and opens
// it at run time. Names, numbers and layouts match nccl.h (src/nccl.h.in of github.com/NVIDIA/nccl)
// from 2.27.3 to 2.32. The package needs no header and no C compiler.
//
// A process must use only one copy of NCCL, because it would crash if it passed a communicator
// created by one copy to another copy. Load therefore uses the copy that the process has already
// loaded, and searches for a copy only if there is none.
//
// # Threads
//
// NCCL keeps the state of groups separately for each operating system thread, and uses the
// current CUDA context of the calling thread. A goroutine must therefore call
// runtime.LockOSThread, set its context, and stay on the thread from GroupStart to GroupEnd. A
// communicator must not be used concurrently, not even for registrations. Only CommAbort and
// AsyncError may be called by another thread while a call on the communicator blocks. These
// rules hold for all methods unless a method states otherwise.
//
// # Waiting
//
// All ranks of a communicator must make its collective calls in the same order. Calls documented as
// blocking wait for the other ranks without a deadline, unless another thread ends the wait with
// CommAbort. Collective operations on streams only launch a kernel and do not block.
//
// # Buffers and handles
//
// Buffers must be on the communicator's device. Counts are in elements. NCCL may use its window
// kernels for buffers inside a window, but it does not report which kernel it chose.
//
// Handles are plain numbers, and the caller that creates one owns it. Errors are of type *Error,
// which errors.Is matches with the Result constants. If the library lacks a function, the error
// is of type *VersionError.
package nccl
