// Package gpu wraps a rank's GPU: its primary CUDA context, calls in that context, and resources of
// the context that belong to no stream and no segment.
//
// # States
//
// A GPU is reference-counted. Open adds the first reference, and every object that may outlive the
// opener adds another (GPU.Hold). The last Drop releases the context, after which the GPU must not
// be used.
//
// Stuck is a final state of the process, in which one of its GPUs runs a kernel that will not exit
// before the process does. CUDA calls that may wait for the whole device are then no longer made,
// so memory stays mapped, contexts stay retained, and kernels are loaded by their first launch.
//
// Work can outlive its stream and its group, because Stream.Close waits only for a limited time.
// The same is true of the backend's internal work. Such work is registered with GPU.AddUnfinished.
// Until it has completed, memory that it may use stays mapped (GPU.KeepsMemory) and the context
// stays retained. Resources that are released before then (GPU.FreeWhenIdle) are freed later, in
// the same order (GPU.Reclaim).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. A single call makes the context
// current in the same transition to C (GPU.With), whereas a sequence of calls locks its goroutine
// to a thread on which the context is current (GPU.Do). Both are cheaper than passing work to an
// executor thread. If the process has adopted streams of another library (GPU.Adopted), some CUDA
// calls on any thread would invalidate that library's captures, so each call is then made on a
// thread in relaxed capture mode.
//
// # Invariants
//
// A value of Pinned has one owner and a fixed address from Take to Put, and the device does not use
// it after Put. Code loads all kernels or none. Work on Aside's stream never waits for callers'
// work.
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
