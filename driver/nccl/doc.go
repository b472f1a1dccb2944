// Package nccl implements the backend for NVIDIA GPUs: memory comes from CUDA's virtual memory
// management, collectives from NCCL and from symmem's own kernels, and ranks coordinate over a
// control plane.
//
// It needs libcuda.so.1 and libnccl.so.2 (2.27.3 or later) at run time and nothing at build time.
//
// # Memory
//
// An arena consists of two reserved address ranges of the same size. A segment is one physical
// allocation that is mapped whole into both, at the same offset. Windows are registered over the
// first mapping only, and callers hold addresses of the first. NCCL finds windows by address, so
// the address passed to NCCL selects the path: window kernels for the first mapping, plain kernels
// for the second. (NCCL uses its window kernels whenever it can, even if they are slower.)
//
// # Control plane
//
// NCCL has no deadlines, compares nothing, and does not report missing ranks. So every group has a
// control.Plane in addition to its NCCL communicator: shared memory if all of its ranks are on one
// machine, TCP otherwise. Over the plane, ranks agree on registrations, compare calls (CheckEvery:
// before the collective is passed to NCCL, so no buffer of a mismatched call is ever written), and
// find the cause of a failure.
//
// Each communicator has a watcher goroutine that checks unfinished work. If a rank is lost, late or
// has failed, it ends NCCL's kernels and blocked calls, and streams with such work report the
// fault.
//
// # Messages
//
// Messages do not use NCCL (internal/p2p). Once a Recv is queued, the host must not call CUDA to
// complete it: many calls wait for other threads, for example for one that frees memory, which
// waits for all streams and so for the Recv. So peers map each other's staging memory when a group
// connects. Only a message in a segment that its sender has allocated later needs a call, to map
// the segment.
//
// A GPU writes the data of a message to its own memory before it writes the word that announces
// the data. So no GPU reads memory that another one may still be writing, and waits need no flush.
//
// # Order
//
// Direct kernels of one group never overlap on a rank, because they share exchange memory and the
// call counter. Launches are ordered by events (direct.LaunchOrder). That includes graphs of other
// libraries, whose replays are invisible to us: each capture with calls of a group waits for the
// group's event before its first call and records the event after its last one (direct.Recordings).
// NCCL's kernels are ordered with direct kernels, too: both may not fit on a GPU together, and
// ranks that ran them in different orders would deadlock. NCCL itself orders its kernels of one
// group.
//
// # Graphs of other libraries
//
// PyTorch captures calls into its own graphs, and replays and destroys them without our knowledge.
// Their kernels contain addresses of the group's exchange memory, report, windows and segments. So
// each such capture keeps these objects through a CUDA user object, whose destructor runs when the
// graph, its clones, their instances, graphs that launch them and unfinished launches are all gone.
// Frees (Deregister, Unmap, Close, the teardown after a fault) are deferred until then. The
// destructor runs on a CUDA thread, so it only decrements counts; a goroutine calls CUDA.
//
// A group that ends sets a word in its report, which ends waiting kernels and kernels that are
// replayed later. NCCL's communicator is aborted immediately if such graphs contain only plain
// kernels of NCCL, which the abort ends; NCCL keeps the memory they use. If they contain window
// kernels, or no kernels of NCCL, it is aborted after the graphs are gone. If the driver has no
// user objects (before CUDA 11.3), everything that captures use is kept until the device closes.
//
// # Parts
//
// internal/gpu wraps the GPU's context and its resources; internal/memory has arenas, segments and
// use counts; internal/stream streams, events and graphs; internal/p2p messages; internal/direct
// the state that direct kernels share. The documentation of each describes its states, locks and
// invariants. This package implements groups.
//
// A communicator launches calls. Each of its other jobs has a type with the fields it needs:
// registrar, recorder, comparer, faults, watcher, owner and teardown. connector creates it. The parts
// share its lock, its plane and its history. decide returns the steps of its teardown.
//
// # Locks of the parts
//
// Goroutines lock in this order, and the locks of control/shm after all of these. Builds with the
// tag invariants panic on a violation. The numbers are unique across all parts (locks.go of each):
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
//	10 gpu.Aside.mu
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
// A goroutine may hold communicator.mu of several groups, locked in the order of their numbers.
//
// Graph.mu, Stream.Mu and communicator.mu are held while this rank waits for others: a launch that
// is compared waits until all ranks have reached it, and a Send without free space until its peer
// has taken messages. Meanwhile, the registration of a segment waits for communicator.mu. The other
// locks are not held during such waits.
//
// # Lock order
//
// The locks of this package:
//
//	communicator.mu
//	Device.mu
//	members.mu
package nccl
