// Package nccl implements the backend for NVIDIA GPUs. It loads libcuda.so.1 and libnccl.so.2
// (2.27.3 or later) at run time.
//
// # Terms
//
// A window is memory that all ranks of a group have registered with NCCL. A window kernel is an
// NCCL kernel that accesses windows, and a plain kernel is an NCCL kernel that does not. A direct
// kernel is one of symmem's own kernels (package kernels). A foreign graph is a CUDA graph that
// another library, such as PyTorch, has captured.
//
// # Memory
//
// A segment of memory is mapped at two addresses, but only the first mapping is registered as a
// window (internal/memory). NCCL uses window kernels for the first address and plain kernels for
// the second.
//
// # Control plane
//
// NCCL has no deadlines, does not compare calls, and does not report missing ranks. Every group
// therefore has a control.Plane, over which ranks agree on registrations, compare calls, and find
// the cause of a failure. If a rank is lost, late or has failed, the group's watcher starts a
// teardown, which stops NCCL's kernels and unblocks calls to NCCL.
//
// # Order
//
// Direct kernels of one group must not overlap on a rank, because they share memory. A direct
// kernel and an NCCL kernel must run in the same order on all ranks: they might not fit on a GPU
// together, and would then deadlock. Events keep the launches in order (internal/direct). NCCL
// orders its own kernels.
//
// # Foreign graphs
//
// Other libraries replay and destroy their graphs without notifying symmem. A CUDA user object of
// each foreign graph holds references to the objects that its kernels use. These objects are freed
// only after the graph and all its copies are destroyed and their launches have completed. Drivers
// before CUDA 11.3 have no user objects, so the objects are kept until the device closes.
//
// A teardown sets a word in host memory that makes kernels exit, including kernels that are
// replayed later.
//
// # Subpackages
//
//	internal/gpu     the GPU's context and its resources
//	internal/memory  segments of memory and use counts
//	internal/stream  streams, events and graphs
//	internal/p2p     messages, which do not use NCCL
//	internal/direct  the state that direct kernels share
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
//	10 gpu.InternalStream.mu
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
// A goroutine may hold communicator.mu of several groups, locked in the order of lockPosition.
//
// Graph.mu, Stream.Mu and communicator.mu are held while this rank waits for other ranks, for
// example while a launch is compared. No other lock is held during such a wait.
//
// # Lock order
//
// The locks of this package:
//
//	communicator.mu
//	Device.mu
//	members.mu
package nccl
