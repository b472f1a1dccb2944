// Package nccl binds the part of NCCL's interface that symmem needs. It opens libnccl at run time,
// without cgo. Names, numbers and layouts match nccl.h (src/nccl.h.in of github.com/NVIDIA/nccl)
// from 2.27.3 to 2.32.
//
// NCCL keeps groups of calls per thread and uses the thread's CUDA context. A goroutine must call
// runtime.LockOSThread, set its context, and stay on the thread from GroupStart to GroupEnd. Only
// CommAbort and AsyncError may be called while another thread uses the communicator.
//
// All ranks must make a communicator's collective calls in the same order. Calls documented as
// blocking wait for the other ranks without a deadline, until another thread calls CommAbort.
//
// For buffers in a window (memory registered on all ranks), NCCL may use special window kernels.
// The caller that creates a handle owns it. Errors are of type *Error, or of type *VersionError if
// the library lacks a function.
package nccl
