// Package nccl binds the part of NCCL's interface that symmem needs, using a libnccl that it
// locates and opens at run time. Names, numbers and layouts are those of nccl.h (src/nccl.h.in of
// github.com/NVIDIA/nccl) from 2.27.3 to 2.32; neither that header nor a C compiler is needed.
//
// A process must use one copy of NCCL: a communicator of one copy crashes in another. Load
// therefore uses the copy that the process has loaded, and searches for one only if there is none.
//
// Threads. NCCL keeps the state of groups per operating system thread, and uses the current CUDA
// context of the calling thread: a goroutine calls runtime.LockOSThread, sets its context, and
// keeps the thread from GroupStart to GroupEnd. A communicator must not be used concurrently,
// registration included; only Abort and AsyncError may be called by another thread while a call on
// the communicator blocks. Methods follow this rule unless they state otherwise.
//
// Waiting. All ranks of a communicator must make its collective calls in the same order. Calls
// documented as blocking wait for the other ranks without a deadline; only Abort from another
// thread ends the wait. Collective operations on streams do not block: they launch a kernel.
//
// Buffers must be on the communicator's device; counts are in elements. NCCL does not report which
// kernel it chose: an address inside a window only makes the window kernels possible.
//
// Handles are plain numbers, owned by the caller that created them. Calls return *Error, which
// matches the Result constants with errors.Is, or *VersionError if the library lacks a function.
package nccl
