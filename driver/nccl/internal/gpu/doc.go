// Package gpu wraps a rank's GPU as CUDA shows it to a process: the primary context, calls in it,
// and resources of the context that belong to no stream and no segment.
//
// # States
//
// A GPU is held from Open on: once by its opener, and once by everything that may outlive the
// opener (GPU.Hold). The context is released with the last hold, and nothing of the package may be
// used after that.
//
// Stuck is a final state of the process: one of its GPUs runs a kernel that only the end of the
// process ends. From then on no CUDA call is made that may wait for the whole device: memory stays
// mapped, contexts stay held, and kernels are not loaded before their launches.
//
// Work may outlive its stream, whose Close waits only for a limited time; its group; and the wait
// for work that the backend itself has queued (GPU.Leave). Until it has ended nothing it may use is
// unmapped (GPU.Keeps), and the context stays held. Resources that were to be freed meanwhile
// (GPU.GiveBack) are freed later, in the same order (GPU.Reclaim).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. Single calls make it current in the
// same entry to C (GPU.With); sequences that rely on one thread lock their goroutine to it
// (GPU.Do), and are called on a thread of the context below. Both cost less than handing work to an
// executor thread. If the process has streams of another library (GPU.Adopted), some calls of any
// thread would invalidate that library's captures, so each call is made on a thread whose capture
// mode was exchanged to prevent that.
//
// # Invariants
//
// A value of Pinned that was handed out stays at one address until it is put back, and no other
// caller has it; the device no longer uses a value that was put back. Code is loaded as a whole.
// Work queued by Aside waits for nothing that callers queue, so its end does not depend on them.
//
// # Lock order
//
// Package nccl documents the order of all locks of the backend.
//
//	Aside.mu
//	Code.Mu
//	Pinned.Mu
//	GPU.mu
package gpu
