// Package nccl implements the backend for NVIDIA GPUs. It loads libcuda.so.1 and libnccl.so.2
// (2.27.3 or later) at run time, and needs neither of them at build time.
//
// # Terms
//
// A window is memory that all ranks of a group have registered with NCCL. A window kernel is an
// NCCL kernel that accesses the windows of other ranks. A plain kernel is an NCCL kernel that uses
// no window. A direct kernel is one of symmem's own kernels (package kernels). A foreign graph is
// a CUDA graph that another library, such as PyTorch, has captured.
//
// # Memory
//
// A segment of memory is mapped at two addresses (internal/memory), and only the first mapping is
// registered as a window. The address passed to NCCL therefore selects the kernel: NCCL uses window
// kernels for the first mapping and plain kernels for the second. With one mapping, NCCL would use
// window kernels even where they are slower.
//
// # Control plane
//
// NCCL has no deadlines, does not compare calls, and does not report missing ranks. Every group
// therefore also has a control.Plane, over which ranks agree on registrations, compare calls, and
// find the cause of a failure. If a rank is lost, is late or has failed, the group's watcher starts
// a teardown, which stops NCCL's kernels and unblocks calls to NCCL.
//
// # Messages
//
// Messages do not use NCCL (internal/p2p). A GPU writes a message's data to its own memory before
// it writes the word that announces the data. No GPU reads memory to which another GPU may still be
// writing, so waits for the word need no flush.
//
// # Order
//
// Direct kernels of one group must not overlap on a rank, because they share exchange memory and
// the call counter. A direct kernel and an NCCL kernel must run in the same order on all ranks:
// they might not fit on a GPU together, and would then deadlock. Events keep the launches in order
// (internal/direct). NCCL orders its own kernels.
//
// # Foreign graphs
//
// Other libraries replay and destroy their graphs without notifying symmem. A CUDA user object of
// each such graph holds references to the objects that its kernels use: the exchange memory, the
// report, windows and segments. Deregister, Unmap, Close and teardowns free these objects only
// after the graph and all its copies are destroyed and their launches have completed. Drivers
// before CUDA 11.3 have no user objects, so the objects are kept until the device closes.
//
// A teardown sets a word in the group's report, which makes waiting kernels exit, and also kernels
// that are replayed later.
//
// # Parts
//
// The subpackages document their own states, locks and invariants:
//
//	internal/gpu     the GPU's context and its resources
//	internal/memory  arenas, segments and use counts
//	internal/stream  streams, events and graphs
//	internal/p2p     messages
//	internal/direct  the state that direct kernels share
//
// # Locks of the parts
//
// Goroutines acquire locks in this order, and the locks of control/shm after all of these. Builds
// with the tag invariants panic on a violation. The locks.go files define the numbers:
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
// A goroutine may hold communicator.mu of several groups, locked in the order of the communicators'
// numbers.
//
// Graph.mu, Stream.Mu and communicator.mu are held while this rank waits for other ranks, for
// example in a launch that is compared, or in a Send that waits for free space. No other lock is
// held during such a wait.
//
// # Lock order
//
// The locks of this package:
//
//	communicator.mu
//	Device.mu
//	members.mu
package nccl
