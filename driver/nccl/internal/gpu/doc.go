// Package gpu wraps a rank's GPU: its primary CUDA context, calls in that context, and resources of
// the context that belong to no stream and no segment.
//
// # States
//
// A GPU is reference-counted. Open adds the first reference, and every object that may outlive the
// opener adds another (GPU.Hold). The last Drop releases the context. The GPU must not be used
// afterwards.
//
// Stuck is a final state of the process, in which one of its GPUs runs a kernel that ends only with
// the process. CUDA calls that may wait for the whole device are then no longer made, so memory
// stays mapped, contexts stay retained, and kernels are loaded by their first launch.
//
// Work can outlive its stream and its group, because Stream.Close waits only for a limited time.
// Internal work of the backend can also take longer than the wait for it. Such work is registered
// with GPU.AddUnfinished. Until the work has ended, memory that it may use stays mapped
// (GPU.KeepsMemory) and the context stays retained. Resources released meanwhile (GPU.FreeWhenIdle)
// are freed later, in the same order (GPU.Reclaim).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. A single call makes the context
// current in the same entry to C (GPU.With). A sequence of calls locks its goroutine to a thread
// (GPU.Do). Code that runs inside Do is documented as "on a thread of the context". Both are
// cheaper than passing work to an executor thread. If the process has adopted streams of another
// library (GPU.Adopted), some CUDA calls on any thread would invalidate that library's captures, so
// each call is then made on a thread in relaxed capture mode.
//
// # Invariants
//
// A value of Pinned has one owner and a fixed address from Take to Put, and the device does not use
// it after Put. Code loads all kernels or none. Work on the stream of Aside never waits for
// callers' work.
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
