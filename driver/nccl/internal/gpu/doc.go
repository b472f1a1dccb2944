// Package gpu is a rank's GPU as CUDA shows it to a process: the primary context, calls in it, and
// what lies in it that belongs to no stream and no segment.
//
// # States
//
// A GPU is held from Open on: once by who has opened it, and by everything that may outlive that
// (GPU.Hold). Its context is given up with the last of them. Nothing of the package is used after.
//
// Stuck is a state of the process: one of its GPUs has a kernel that only the end of the process
// ends. There is no way back. Then nothing that CUDA may wait for the whole device in is called any
// more: memory stays mapped, contexts stay held, and kernels are not loaded ahead of their
// launches.
//
// Work may outlive its stream, whose Close waits for it only so long, its group, and the wait for
// what the backend itself has queued (GPU.Leave). Until it has ended nothing that it may use is
// unmapped (GPU.Keeps), and the context stays held. What was to be given back meanwhile
// (GPU.GiveBack) is so later, in the same order (GPU.Reclaim).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. Single calls make it current in the
// same entry to C (GPU.With); sequences that rely on one thread lock their goroutine to it
// (GPU.Do), and are called on a thread of the context below. Both cost less than handing work to an
// executor thread would. Where the process has streams of another library (GPU.Adopted), whose
// captures some calls of any thread would spoil, each call is made on a thread that was set to
// spoil none.
//
// # Invariants
//
// A value of Pinned that was handed out is at one address until it is put back, and no other has
// it; what is put back the device uses no more. Code is loaded as a whole. What Aside queues waits
// for nothing that callers queue, so its end does not depend on them.
//
// # Lock order
//
// The order is that of all packages of the backend: see package nccl.
//
//	Aside.mu
//	Code.Mu
//	Pinned.Mu
//	GPU.mu
package gpu
