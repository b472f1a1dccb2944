// Package stream has the streams of a rank's GPU, their events and their graphs.
//
// # Streams
//
// A Stream is a CUDA stream with what CUDA does not keep: whose collectives it has, and the first
// fault that one of them met. It is open; capturing, from BeginCapture to EndCapture, while work is
// recorded into a graph; closed, for good. Close ends a capture, and waits for the work as long as
// that can be expected to end; if it does not the device keeps what it has (gpu.GPU.Keeps).
// Stream.Mu guards the state, which changes with Stream.queryMu held as well when it closes: so
// CUDA is asked nothing about a stream that its owner may have ended. Captures use CUDA's relaxed
// mode, since goroutines change threads.
//
// Stream.Mu is held from before work is noted until CUDA has it, so that a stream whose lock is
// taken does not count as idle.
//
// An adopted stream is another library's, which may capture it or end it at any time. CUDA is asked
// whether it is captured, but not whether it is idle: that would invalidate a capture that the
// owner begins just then. Each call records an event after itself, and CUDA is asked about the
// event.
//
// Work that does not end costs a stream its CUDA stream (Stream.Abandon): the stream goes on with
// another one, and the process counts as stuck. An adopted one stays as it is.
//
// # Groups
//
// The package knows of a group what Group says. Streams keep groups to ask why a wait may never end
// (the last one that has launched), to return each fault of one once (faults), and to tell those
// whose events may be recorded later that the stream captures, ends, or gets what may wait for
// something else (Stream.AddGroup, Stream.RecordGroups). BusyStreams lists the streams that may
// have work of a group: one is added before it gets some (BusyStreams.Note), and dropped when it is
// found idle.
//
// # Events
//
// An Event has no point, and is done, until it is recorded; then it marks a Point, a CUDA event. A
// point goes back to the device when no event has it any more: events have no Close. A point that
// several events have is not recorded anew. Event.mu guards which point an event has.
//
// # Graphs
//
// A Graph is capturing, and its stream's alone, whose lock guards it; open from EndCapture on, if
// CUDA has instantiated it; closed, once launches under way have ended or are given up. Graph.mu
// guards that. It keeps what its nodes use: points, words, host functions, and by Calls what it has
// of groups. Launches of one graph come one after the other. Words of one whose launches do not end
// are not given back.
//
// CUDA runs the host functions of a whole context on one thread, so one that takes its time would
// hold up every stream. Ours therefore only start a goroutine, and the stream waits for a word of
// host memory that the goroutine writes when the work is done.
//
// # Lock order
//
// The order is that of all packages of the backend: see package nccl. Graph.mu and Stream.Mu are
// held while other ranks are waited for: a launch that is compared waits until they have come to
// it.
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
