// Package gpu wraps a rank's GPU: its primary CUDA context, calls in that context, and resources
// of the context that do not belong to a stream or to a segment of memory.
//
// # States
//
// A GPU is reference-counted. Open adds the first reference, and every object that may outlive the
// opener adds another (GPU.Hold). The last Drop releases the context, after which the GPU must not
// be used.
//
// Stuck is a final state of the process. It means that one of the process's GPUs runs a kernel
// that will not exit before the process does. From then on, the backend makes no CUDA calls that
// may wait for the whole device, so memory stays mapped, contexts stay retained, and each kernel
// is loaded by its first launch.
//
// Work can outlive its stream and its group, because Stream.Close waits only for a limited time.
// The same is true of the backend's internal work. Such work is registered with
// GPU.AddUnfinished. Until it has completed, memory that it may use stays mapped
// (GPU.MustKeepMemory) and the context stays retained. A resource that is released before then is
// freed later (GPU.FreeWhenIdle). Such resources are freed in the order in which they were
// released (GPU.Reclaim).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. For a single call, the context is
// made current in the same transition to C (GPU.With). For a sequence of calls, the goroutine is
// locked to a thread on which the context is current (GPU.Do). Both are cheaper than passing work
// to an executor thread. If the process has adopted streams of another library (GPU.Adopted),
// some CUDA calls would invalidate that library's captures, on whichever thread they are made.
// Each call is therefore made on a thread in relaxed capture mode.
//
// # Invariants
//
// From Take to Put, a value of Pinned has one owner and a fixed address, and the device does not
// use the value after Put. Code loads all kernels or none. Work on the InternalStream never waits
// for work that callers have queued.
//
// # Lock order
//
// Package nccl documents the order of all locks of the backend.
//
//	InternalStream.mu
//	Code.Mu
//	Pinned.Mu
//	GPU.mu
package gpu
