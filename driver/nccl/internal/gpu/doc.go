// Package gpu wraps a rank's GPU: its primary CUDA context, calls in that context, and resources
// that do not belong to a stream or to a segment of memory. Work can outlive its stream and its
// group, because Stream.Close waits only for a limited time. Memory stays mapped until the work has
// completed (GPU.MustKeepMemory).
//
// # Lock order
//
//	InternalStreams.mu
//	Code.Mu
//	Pinned.Mu
//	GPU.mu
package gpu
