// Package stream implements the streams, events and graphs of a rank's GPU.
//
// # Streams
//
// A Stream wraps a CUDA stream and adds state that CUDA does not keep: the groups whose collectives
// it runs (launchers), its latest call (lastCall) and the first fault (faults). It is open;
// capturing, from BeginCapture to EndCapture, while work is recorded into a graph; or closed, for
// good. Close ends a capture, and waits for the work as long as that can be expected to end; if it
// does not, the device keeps its resources (gpu.GPU.Keeps). Stream.Mu guards the state. Captures
// use CUDA's relaxed mode, since goroutines change threads.
//
// Stream.Mu is held from before work is noted until CUDA has it, so a stream whose lock is held
// does not count as idle.
//
// An adopted stream belongs to another library, which may capture or destroy it at any time
// (adoption). We query CUDA whether it is captured, but not whether it is idle: that query would
// invalidate a capture that the owner is just beginning. Instead each call records an event after
// itself, and we query the event. Close waits for running queries, so that the owner may destroy
// the stream afterwards.
//
// If work on a stream does not end, Stream.Abandon replaces the CUDA stream under it and marks the
// process as stuck. An adopted stream is not replaced.
//
// # Groups
//
// The package uses a group through the interface Group. A stream asks the group of its latest call
// why a wait may never end, and returns each fault of a group once. Groups record their events
// late, so a stream notifies all groups on it when it starts a capture, ends, or is about to wait
// for something unrelated (Stream.RecordGroups). BusyStreams lists the streams that may have work
// of a group: a stream is added before it gets work (BusyStreams.Note), and dropped when it is
// found idle.
//
// # Events
//
// An Event counts as done until it is recorded; then it refers to a Point, which wraps a CUDA
// event. The CUDA event returns to the device's pool when no event refers to the point any more:
// events have no Close. A point that several events share is not recorded again. Event.mu guards
// the point of an event.
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
//	adoption.queryMu
//	faults.faultsMu
//	Streams.mu
package stream
