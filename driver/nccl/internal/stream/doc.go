// Package stream implements the streams, events and graphs of a rank's GPU.
//
// # Streams
//
// A Stream wraps a CUDA stream and adds state that CUDA does not keep: the groups whose
// collectives it runs (launchers), its latest call (lastCall) and the first fault (faults). A
// Stream is open at first, capturing from BeginCapture to EndCapture, while its work is recorded
// into a graph, and finally closed. Close ends a capture and waits for the work with a time
// limit. If the work does not complete in time, the device keeps the memory that the work uses
// mapped (gpu.GPU.MustKeepMemory). Stream.Mu guards the state. Captures use CUDA's relaxed mode,
// because goroutines change threads.
//
// Stream.Mu is held from before the stream is added to BusyStreams until CUDA has accepted the
// work. A stream whose lock is held does not count as idle.
//
// An adopted stream belongs to another library, which may capture or destroy it at any time
// (adoption). The package may ask CUDA whether the stream is being captured. It must not ask CUDA
// whether the stream is idle, because that query would invalidate a capture that the owner may be
// beginning. Instead, each call records an event after its work, and the package queries the
// event. Close waits for running queries, after which the owner may destroy the stream.
//
// If work on a stream never completes, Stream.Abandon replaces the CUDA stream under it and marks
// the process as stuck. An adopted stream is not replaced.
//
// # Groups
//
// The package uses a group through the interface Group. A stream asks the group of its latest call
// why a wait may never end. A stream returns the fault of each group only once. A group does not
// record an event after each call, but only when the event is needed. A stream therefore makes all
// groups on it record their events when it starts a capture, is closed, or is about to wait for
// something other than calls of these groups (Stream.RecordGroups). BusyStreams lists the streams
// that may have work of a group. A stream is added before work is queued on it (BusyStreams.Add)
// and removed once it has become idle (BusyStreams.AllIdle).
//
// # Events
//
// An Event counts as done until it is first recorded. From then on it refers to a Point, which
// wraps a CUDA event. Events have no Close method. Instead, the CUDA event returns to the
// device's pool once no Event refers to its Point any more. If several Events share a Point, its
// CUDA event is not recorded again. Event.mu guards an event's point.
//
// # Graphs
//
// A Graph is capturing until EndCapture instantiates it, then open, and finally closed, once its
// launches have completed or have been abandoned. The stream's lock guards a capturing graph, and
// Graph.mu an open or closed one. A graph keeps the objects that its nodes use: points, words of
// host memory, host functions, and the calls of groups (Calls). Launches of one graph run one
// after the other. If a launch does not complete, the graph's words are not freed.
//
// CUDA runs the host functions of a whole context on one thread, so a slow one would delay every
// stream. The host functions of this package therefore only start a goroutine, and the stream waits
// for a word of host memory that the goroutine writes when it is done.
//
// # Lock order
//
// Package nccl documents the order of all locks of the backend. Graph.mu and Stream.Mu are held
// during waits for other ranks, because a compared launch waits until the other ranks have reached
// it.
//
//	Graph.mu
//	Stream.Mu
//	BusyStreams.mu
//	Event.mu
//	pool.mu
//	adoption.queryMu
//	faults.faultsMu
//	Streams.mu
package stream
