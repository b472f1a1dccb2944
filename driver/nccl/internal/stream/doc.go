// Package stream implements the streams, events and graphs of a rank's GPU.
//
// # Streams
//
// A Stream is a CUDA stream plus state that CUDA does not keep: the groups whose collectives it
// runs, and the first fault that one of them met. It is open; capturing, from BeginCapture to
// EndCapture, while work is recorded into a graph; or closed, for good. Close ends a capture, and
// waits for the work as long as that can be expected to end; if it does not, the device keeps its
// resources (gpu.GPU.Keeps). Stream.Mu guards the state. Closing also takes Stream.queryMu, so that
// no CUDA query runs on a stream that its owner may have destroyed. Captures use CUDA's relaxed
// mode, since goroutines change threads.
//
// Stream.Mu is held from before work is noted until CUDA has it, so a stream whose lock is taken
// does not count as idle.
//
// An adopted stream belongs to another library, which may capture or destroy it at any time. We
// query CUDA whether it is captured, but not whether it is idle: that query would invalidate a
// capture that the owner is just beginning. Instead each call records an event after itself, and we
// query the event.
//
// If work on a stream does not end, Stream.Abandon replaces the CUDA stream under it and marks the
// process as stuck. An adopted stream is not replaced.
//
// # Groups
//
// The package uses a group through the interface Group. Streams remember groups to ask why a wait
// may never end (the last group that has launched), to return each fault of a group once (faults),
// and to notify those whose events are recorded late that the stream captures, ends, or is about to
// wait for something else (Stream.AddGroup, Stream.RecordGroups). BusyStreams lists the streams
// that may have work of a group: a stream is added before it gets some (BusyStreams.Note), and
// dropped when it is found idle.
//
// # Events
//
// An Event has no point, and counts as done, until it is recorded; then it marks a Point, which is
// a CUDA event. A point returns to the device when no event refers to it any more: events have no
// Close. A point that several events share is not recorded again. Event.mu guards the point of an
// event.
//
// # Graphs
//
// A Graph is capturing, and guarded by the lock of its stream; open, after EndCapture has
// instantiated it; or closed, once its launches have ended or are abandoned. Graph.mu guards the
// last two states. A graph keeps the objects that its nodes use: points, words, host functions,
// and, in Calls, the calls of groups. Launches of one graph run one after the other. The words of a
// graph whose launches do not end are not freed.
//
// CUDA runs the host functions of a whole context on one thread, so a slow one would delay every
// stream. Ours therefore only start a goroutine, and the stream waits for a word of host memory
// that the goroutine writes when it has finished.
//
// # Lock order
//
// Package nccl documents the order of all locks of the backend. Graph.mu and Stream.Mu are held
// while other ranks are waited for: a launch that is compared waits until they have reached it.
//
//	Graph.mu
//	Stream.Mu
//	BusyStreams.mu
//	Event.mu
//	pool.mu
//	Stream.queryMu
//	faults.mu
//	Streams.mu
package stream
