// Package gpu wraps a rank's GPU as CUDA shows it to a process: the primary context, calls in it,
// and resources of the context that belong to no stream and no segment.
//
// # States
//
// A GPU is reference-counted. Open takes the first reference; everything that may outlive the
// opener takes another one (GPU.Hold). The last Drop releases the context, and nothing of the
// package may be used after that.
//
// Stuck is a final state of the process: one of its GPUs runs a kernel that ends only with the
// process. From then on no CUDA call is made that may wait for the whole device: memory stays
// mapped, contexts stay retained, and kernels are not loaded before their launches.
//
// Work can outlive its group and its stream, because Stream.Close waits for a limited time only,
// and so can internal work of the backend. Such work is registered with GPU.Leave. Until it has
// ended, memory that it may use stays mapped (GPU.Keeps) and the context stays retained. Resources
// released meanwhile (GPU.GiveBack) are freed later, in the same order (GPU.Reclaim).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. Single calls make it current in the
// same entry to C (GPU.With). Sequences of calls lock their goroutine to a thread (GPU.Do); code
// that runs inside Do is documented as "on a thread of the context". Both cost less than handing
// work to an executor thread. If the process has adopted streams of another library (GPU.Adopted),
// some CUDA calls on any thread would invalidate that library's captures. So each call is then made
// on a thread in relaxed capture mode.
//
// # Invariants
//
// A value of Pinned has one owner and a fixed address from Take to Put, and the device does not use
// it after Put. Code is loaded as a whole. Work queued by Aside never waits for work of callers.
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
