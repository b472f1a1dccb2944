// Package nccl implements the backend for NVIDIA GPUs. It loads libcuda.so.1 and libnccl.so.2
// (2.27.3 or later) at run time. docs/design/nccl.md gives the reasons for its design.
//
// A window is memory that all ranks of a group have registered with NCCL. Window kernels are NCCL
// kernels that access windows, and plain kernels are other NCCL kernels. Direct kernels are
// symmem's own (package kernels). Foreign graphs are CUDA graphs that other libraries, such as
// PyTorch, have captured. They are replayed and destroyed without notice, so a CUDA user object of
// each one keeps the objects that its kernels use. Drivers before CUDA 11.3 have no user objects,
// and the objects are kept until the device closes.
//
// A direct kernel and an NCCL kernel must run in the same order on all ranks: they might not fit on
// a GPU together, and would then deadlock. Events keep the launches in order (internal/direct).
//
// # Locks of all subpackages
//
// Goroutines acquire locks in this order, and the locks of control/shm after all of these. Builds
// with the tag invariants panic on a violation.
//
//	 1 stream.Graph.mu
//	 2 stream.Stream.Mu
//	 3 memory.Scratch.mu
//	 4 memory.Segment.mu
//	 5 communicator.mu
//	 6 p2p.inbox.mu
//	 7 stream.BusyStreams.mu
//	 8 direct.Launches.mu
//	 9 direct.Exchange.mu
//	10 gpu.InternalStreams.mu
//	11 gpu.Code.Mu
//	12 direct.LaunchOrder.mu
//	13 stream.Event.mu
//	14 stream.pool.mu
//	15 stream.adoption.queryMu
//	16 stream.faults.faultsMu
//	17 gpu.Pinned.Mu
//	18 memory.Memory.mu
//	19 stream.Streams.mu
//	20 memory.UseCounts.mu
//	21 Device.mu
//	22 gpu.GPU.mu
//	23 p2p.Device.mu
//	24 members.mu
//
// A goroutine may hold communicator.mu of several groups, locked in the order of lockPosition. Only
// Graph.mu, Stream.Mu and communicator.mu are held while this rank waits for other ranks.
//
// # Lock order
//
// The locks of this package:
//
//	communicator.mu
//	Device.mu
//	members.mu
package nccl
