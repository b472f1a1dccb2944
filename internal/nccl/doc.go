// Package nccl is the part of NCCL's interface that symmem needs, over a libnccl that is found and
// opened at run time. Names, numbers and layouts are those of nccl.h (src/nccl.h.in of
// github.com/NVIDIA/nccl) from 2.27.3 to 2.32; nothing here needs that header or a C compiler.
//
// A process must use one copy of NCCL: a communicator of one copy crashes in another. Load
// therefore takes the copy that the process has loaded already, and only else looks for one.
//
// Threads. NCCL keeps the state of groups for each thread of the operating system, and takes the
// current CUDA context of the calling thread: a goroutine calls runtime.LockOSThread, sets its
// context, and keeps the thread from GroupStart to GroupEnd. One communicator is used by one
// thread at a time, registration included; only Abort and AsyncError may be called by another
// thread while a call on the communicator blocks. Methods that say nothing else follow this rule.
//
// Waiting. A collective call must be made by all ranks of the communicator, in one order. Calls
// that are said to block wait for the other ranks without a deadline; Abort from another thread
// is the only way out. Collective operations on streams do not block: they queue a kernel.
//
// Buffers lie on the communicator's device; counts are in elements. Nothing says which kernel
// NCCL chose: an address inside a window makes the window kernels possible, no more.
//
// Handles are owned by whoever made them and are plain numbers. Calls return *Error, which matches
// the Result constants by errors.Is, or *VersionError where the library lacks a function.
package nccl
