// Package stream implements the streams, events and graphs of a rank's GPU
// (docs/design/nccl-streams.md). Captures use CUDA's relaxed mode, because goroutines change
// threads.
//
// An adopted stream belongs to another library, which may capture or destroy it at any time. A
// query of the stream would invalidate a capture that the owner is beginning. Each call therefore
// records an event after its work, and the package queries the event.
//
// Stream.Mu guards a stream and the graph that it captures. Graph.mu guards a graph after
// EndCapture. Launches of one graph do not overlap.
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
