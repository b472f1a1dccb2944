// Package gpu wraps a rank's GPU: its primary CUDA context, calls in that context, and resources
// that do not belong to a stream or to a segment of memory.
//
// # Unfinished work
//
// Stuck is set forever once a GPU of the process has a kernel that will not exit before the process
// does. The backend then makes no CUDA calls that may wait for the whole device.
//
// Work can outlive its stream and its group, because Stream.Close waits only for a limited time.
// Memory stays mapped until the work has completed (GPU.MustKeepMemory).
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
