// Package gpu wraps a rank's GPU: its primary CUDA context, calls in that context, and resources
// that do not belong to a stream or to a segment of memory.
//
// # States
//
// A GPU is reference-counted. Open adds the first reference, and every object that may outlive the
// opener adds another (GPU.Hold). The last Drop releases the context.
//
// Stuck is a final state of the process: one of its GPUs runs a kernel that will not exit before
// the process does. From then on, the backend makes no CUDA calls that may wait for the whole
// device.
//
// Work can outlive its stream and its group, because Stream.Close waits only for a limited time.
// Such work is registered with GPU.AddUnfinished. Until it has completed, memory stays mapped
// (GPU.MustKeepMemory). A resource released before then is freed later (GPU.FreeWhenIdle).
//
// # Threads
//
// CUDA's current context belongs to an operating system thread. For a single call, the context is
// made current in the same transition to C (GPU.With). For a sequence of calls, the goroutine is
// locked to a thread on which the context is current (GPU.Do).
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
