// Package nccl is the backend of NVIDIA GPUs: memory is CUDA virtual memory, collectives are
// NCCL's, and ranks agree on a control plane of our own.
//
// It needs libcuda.so.1 and libnccl.so.2 (2.27.3 or later) at run time and nothing at build time.
//
// # Memory
//
// An arena is two reserved ranges of addresses of the same size. A segment is one physical
// allocation that is mapped whole into both, at the same offset. Windows are registered over the
// first mapping only, and callers hold addresses of the first. NCCL finds windows by address, so
// the address it is given chooses the path: the first mapping's the window kernels, the second's
// the plain ones. (NCCL takes its window kernels whenever it can, also where they are slower.)
//
// # Control plane
//
// NCCL has no deadlines, compares nothing, and does not report the missing ranks. So every group
// has a control.Plane in addition to its NCCL communicator: shared memory where all of its ranks
// are on one machine, TCP where they are not. Ranks agree there, compare calls there (CheckEvery:
// before the collective is given to NCCL, so no buffer of a mismatched call is ever written), and
// find out there why they failed.
//
// A watcher goroutine for each communicator looks after work that is under way. When a rank is
// lost, late or has failed, it ends NCCL's kernels and blocked calls, and the streams that had such
// work report the fault.
//
// # Messages
//
// They go without NCCL (internal/p2p). Once a Recv is queued nothing needs CUDA on the host: many
// of its calls wait for a thread that frees memory, say, which waits for all streams, and so for
// the Recv. So peers map each other's staging when a group connects. Only a message in a segment
// that its sender has made since needs a call, to map that.
//
// The data stays in the memory of the GPU that has written it, before it writes the word, so no GPU
// looks at memory that another one may still be writing: waits need no flush.
//
// # Order
//
// Kernels of our own of one group never run at once on a rank: they share exchange memory, and the
// number of the call. Launches are ordered by events (direct.LaunchOrder), also those on streams of
// other libraries, whose replays are not seen: a capture that holds calls of a group waits for the
// group's event before the first and records it behind the last (recordings). Calls that NCCL runs
// are ordered with them, too: the kernels of both may not fit on a GPU together, and ranks that ran
// them in different orders would wait for each other. Two kernels of NCCL of one group are ordered
// by NCCL.
//
// # Graphs of other libraries
//
// PyTorch captures calls into graphs of its own, and replays and destroys them unseen. Their
// kernels have addresses of the group's exchange memory, its report, windows and segments. So each
// capture that has calls of a group holds what these use, by a CUDA user object of its graph: it
// ends with the last of the graph, its clones, what was instantiated of them, graphs that launch
// that, and launches under way. What is given back meanwhile (Deregister, Unmap, Close, the
// teardown after a fault) is deferred until then. The destructor, on a thread of CUDA's, drops
// counts and leaves calls of CUDA to a goroutine.
//
// A group that ends tells its kernels so in the report: those that wait, and those that are
// replayed later, end without a result. NCCL's communicator is aborted at once where such graphs
// have only plain kernels of NCCL's, which that ends; NCCL itself keeps what they use. Where they
// have window kernels, or none of NCCL's, it is aborted behind them. A driver without user objects
// (before CUDA 11.3) keeps what captures use until the device closes.
//
// # Parts
//
// internal/gpu has the GPU's context and what lies in it, internal/memory arenas, segments and what
// graphs of other libraries keep of them, internal/stream streams, events and graphs, internal/p2p
// messages, internal/direct what kernels of the direct path share. Each says in its documentation
// which states, locks and invariants it has. This package has the groups.
//
// A communicator launches calls, and has a type with the fields it needs for each other job:
// registrar, recorder, comparer, faults, watcher, owner and teardown. joining makes it. They share
// its lock, its plane and its history. decide says in which steps it ends.
//
// # Locks of the parts
//
// A goroutine takes locks in one order, those of control/shm after all of these. Builds with the
// tag invariants panic where it does not. Places are numbered through all parts (locks.go of each):
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
// A goroutine may have communicator.mu of several groups, taken in the order of their numbers.
//
// Graph.mu, Stream.Mu and communicator.mu are held while this rank waits for others: a launch that
// is compared waits until they have come to it, and a Send until others have taken messages if
// there is no place for it. A segment that is mapped meanwhile, which NCCL has to be told of, waits
// for communicator.mu, and with it the allocation that needs the segment. The other locks are not
// held over such waits.
//
// # Lock order
//
// Those of this package:
//
//	communicator.mu
//	Device.mu
//	members.mu
package nccl
