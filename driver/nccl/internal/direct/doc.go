// Package direct manages the state that the direct kernels of a group share: the memory through
// which they exchange data, the order of their launches, and a history of the launches. (Direct
// kernels, in package kernels, implement collectives without NCCL.)
//
// # Order
//
// Kernels of one group never overlap on a rank, because they share exchange memory and the call
// counter. LaunchOrder orders the launches on all streams with events. Before the stream of the
// latest launch starts a capture, is closed or waits for something else, RecordLatest records an
// event there. Otherwise Begin records it for the next launch.
//
// If another library captures a call, symmem does not see the replays of that library's graph. From
// then on, every launch waits for a permanent event (replayEvent) and records it again. The
// captured graph waits for it before its first call, and records it after its last call
// (Recording).
//
// # Locks
//
// The group's lock guards Recordings and most of LaunchOrder. RecordLatest must not acquire the
// group's lock, which may be held while ranks wait for each other, so LaunchOrder.mu guards the
// fields that it changes. Package nccl documents the order of all locks of the backend.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
