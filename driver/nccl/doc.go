// Package nccl implements the backend for NVIDIA GPUs. It allocates memory with CUDA's virtual
// memory management, runs collectives with NCCL and with symmem's own kernels, and coordinates
// ranks over a control plane.
//
// It loads libcuda.so.1 and libnccl.so.2 (2.27.3 or later) at run time, and needs neither of them
// at build time.
//
// # Memory
//
// An arena consists of two reserved address ranges of the same size. A segment is one physical
// allocation that is mapped into both ranges at the same offset. Windows cover only the first
// mapping. Callers use addresses in the first mapping. NCCL finds windows by address, so the
// address passed to NCCL selects the path: NCCL uses window kernels for addresses in the first
// mapping, and plain kernels for addresses in the second. Without the second mapping, NCCL would
// use its window kernels whenever it can, even where they are slower.
//
// # Control plane
//
// NCCL has no deadlines, does not compare calls, and does not report missing ranks, so every
// group has a control.Plane in addition to its NCCL communicator. The plane uses shared memory if
// all ranks of the group are on one machine, and TCP otherwise. Over the plane, ranks agree on
// registrations, compare calls, and find the cause of a failure. With CheckEvery, ranks compare
// each call before they pass it to NCCL, so that mismatched calls write to no buffers.
//
// Each communicator has a watcher goroutine that checks unfinished work. If a rank is lost, is late
// or has failed, the watcher starts a teardown, which stops NCCL's kernels and unblocks calls to
// NCCL. Streams with unfinished work then report the fault.
//
// # Messages
//
// Messages do not use NCCL (internal/p2p). Once a Recv is queued, completing it must not require
// a call to CUDA on the host. Such a call may wait for another thread that is freeing memory, and
// that thread may wait for all streams, including the stream of the Recv. For this reason, peers
// map each other's staging memory when a group connects. If a sender allocates another segment
// later, the receiver has to map it when a message arrives there.
//
// A GPU writes a message's data to its own memory before it writes the word that announces the
// data. Therefore no GPU reads memory to which another GPU may still be writing, and waits for
// the word need no flush.
//
// # Order
//
// Direct kernels of one group must not overlap on a rank, because they share exchange memory and
// the call counter. Events keep the launches in order (direct.LaunchOrder). Symmem does not see
// replays of other libraries' graphs. Therefore each captured graph itself waits for the group's
// event before the group's first call, and records the event after the last call
// (direct.Recordings). Events also order NCCL's kernels with respect to direct kernels. A direct
// kernel and an NCCL kernel might not fit on a GPU together, so ranks that ran them in different
// orders would deadlock. NCCL itself keeps its kernels of one group in order.
//
// # Graphs of other libraries
//
// PyTorch captures calls into its own graphs, which it replays and destroys without notifying
// symmem. The graphs' kernels contain addresses of the group's exchange memory, report, windows and
// segments, so each such capture holds references to these objects through a CUDA user object. The
// user object's destructor runs once the graph, its clones, their instances and the graphs that
// contain them have been destroyed and all launches have completed. Until then, anything that would
// free the objects (Deregister, Unmap, Close, a teardown) is deferred. The destructor runs on a
// CUDA thread, where calls to CUDA are forbidden, so it only decrements counts, and a goroutine
// frees the objects.
//
// The teardown of a group sets a word in the group's report. This makes waiting kernels exit, and
// also kernels that are replayed later. If the graphs contain only plain kernels of NCCL, NCCL's
// communicator is aborted immediately: the abort stops these kernels, and NCCL keeps the memory
// they use. In all other cases, the communicator is aborted after the graphs are destroyed. If
// the driver has no user objects (before CUDA 11.3), everything that captures use is kept until
// the device closes.
//
// # Parts
//
// This package implements groups. Its subpackages document their own states, locks and invariants:
//
//	internal/gpu     the GPU's context and its resources
//	internal/memory  arenas, segments and use counts
//	internal/stream  streams, events and graphs
//	internal/p2p     messages
//	internal/direct  the state that direct kernels share
//
// A connector joins a group and creates its communicator, which launches calls. The communicator's
// parts do everything else: registrar, recorder, comparer, faults, watcher, owner, suspender,
// twoLevel and teardown. The parts share the communicator's lock, plane and history. The function
// decide chooses each step of the teardown.
//
// # Locks of the parts
//
// Goroutines acquire locks in this order, and the locks of control/shm after all of these. Builds
// with the tag invariants panic on a violation. The numbers, which the locks.go files define, are
// unique across all parts:
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
// Graph.mu, Stream.Mu and communicator.mu are held while this rank waits for other ranks: a launch
// that is compared waits until all ranks have reached it, and a Send waits for free space until its
// peer has received messages. Meanwhile, the registration of a segment waits for communicator.mu.
// All other locks are released during such waits.
//
// # Lock order
//
// The locks of this package:
//
//	communicator.mu
//	Device.mu
//	members.mu
package nccl
