// Package stream implements the streams, events and graphs of a rank's GPU.
//
// # Streams
//
// A Stream wraps a CUDA stream. It is capturing from BeginCapture to EndCapture, and finally
// closed. Close ends a capture and waits for the work. If the wait times out, the device keeps the
// memory that the work uses. Stream.Mu guards the state. Captures use CUDA's relaxed mode, because
// goroutines change threads.
//
// An adopted stream belongs to another library, which may capture or destroy it at any time. A
// query of the stream would invalidate a capture that the owner is beginning. Each call therefore
// records an event after its work, and the package queries the event.
//
// # Graphs
//
// A Graph is capturing until EndCapture instantiates it, then open, and finally closed. The
// stream's lock guards a capturing graph, and Graph.mu guards an open or closed one. Launches of
// one graph do not overlap.
//
// CUDA runs the host functions of a whole context on one thread. The host functions of this package
// therefore only start a goroutine, and the stream waits for a word of host memory that the
// goroutine writes when it is done.
//
// # Lock order
//
// Graph.mu and Stream.Mu are held during waits for other ranks.
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
