// Package direct manages the state that the direct kernels of a group share: the memory through
// which they exchange data, the order of their launches, and a history of the launches. (Direct
// kernels, in package kernels, implement collectives without NCCL.)
//
// # Order
//
// Kernels of one group never overlap on a rank, because they share exchange memory and the call
// counter. A direct kernel does not overlap with an NCCL kernel of the group either, because the
// two might not fit on a GPU together. LaunchOrder orders the launches on all streams with events.
//
// As long as an event can still be recorded on the stream of the latest launch, LaunchOrder stores
// that stream (latest). After that, it stores an event that marks the end of the launch
// (latestEvent). RecordLatest records this event before the stream starts a capture, is closed or
// waits for something else. Otherwise Begin records it for the next launch.
//
// If another library captures a call, symmem does not see the replays of that library's graph. From
// then on, every launch waits for a permanent event (replayEvent) and records it again. The
// captured graph waits for it before its first call, and records it after its last call
// (Recording).
//
// # Locks
//
// The group's lock guards Recordings and most of LaunchOrder. LaunchOrder.mu guards the fields that
// RecordLatest changes. RecordLatest must not acquire the group's lock, which may be held while
// ranks wait for each other. Package nccl documents the order of all locks of the backend.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
