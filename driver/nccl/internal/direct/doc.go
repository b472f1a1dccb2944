// Package direct manages the state that the direct kernels of a group (package kernels) share: the
// memory through which they exchange data, the order of their launches, and a history of the
// launches. Kernels of one group never overlap on a rank, because they share memory and a call
// counter. Before the stream of the latest launch starts a capture, is closed or waits for
// something else, RecordLatest records an event there. Otherwise Begin records it for the next
// launch.
//
// After another library has captured a call, symmem does not see replays of that library's graph.
// From then on, every launch waits for a permanent event (replayEvent) and records it again. The
// captured graph does the same before its first call and after its last call (Recording).
//
// The group's lock guards Recordings and most of LaunchOrder. It may be held while ranks wait for
// each other, so RecordLatest uses LaunchOrder.mu instead.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
