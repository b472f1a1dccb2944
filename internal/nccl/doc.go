// Package nccl binds the part of NCCL's interface that symmem needs. It locates libnccl and opens
// it at run time, without cgo. Names, numbers and layouts match nccl.h (src/nccl.h.in of
// github.com/NVIDIA/nccl) from 2.27.3 to 2.32.
//
// A process must use only one copy of NCCL. Load therefore prefers the copy that the process has
// already loaded.
//
// # Threads
//
// NCCL keeps groups of calls per thread, and uses the thread's current CUDA context. A goroutine
// must therefore call runtime.LockOSThread, set its context, and stay on the thread from GroupStart
// to GroupEnd. A communicator must not be used concurrently. Only CommAbort and AsyncError may be
// called while another thread is blocked in a call on the communicator.
//
// # Waiting
//
// All ranks of a communicator must make its collective calls in the same order. Calls documented as
// blocking wait for the other ranks without a deadline, until another thread calls CommAbort.
//
// # Buffers and handles
//
// Buffers must be on the communicator's device. For buffers inside a window (memory registered on
// all ranks), NCCL may use special kernels, the window kernels. Handles are plain numbers, and the
// caller that creates one owns it. Errors are of type *Error, or of type *VersionError if the
// library lacks a function.
package nccl
