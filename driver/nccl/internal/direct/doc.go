// Package direct manages the state that the direct kernels of a group share: the memory through
// which they exchange data, the order of their launches, and a history of the launches. (Direct
// kernels, in package kernels, implement collectives without NCCL.)
//
// # Exchange memory
//
// An Exchange is open on all ranks of a group or on none. Kernels and the host communicate through
// the report, a block of host memory. Close is called once the group's last kernel has exited and
// no other can start. It frees the memory but keeps the contents of the report.
//
// # Order
//
// Kernels of one group never overlap on a rank, because they share exchange memory and the call
// counter. A direct kernel does not overlap with an NCCL kernel of the group either, because the
// two might not fit on a GPU together. LaunchOrder orders the launches on all streams with events.
// NCCL orders its own launches.
//
// As long as an event can still be recorded on the stream of the latest launch, LaunchOrder stores
// that stream (latest). After that, it stores an event that marks the end of the launch
// (latestEvent). Begin makes the next launch wait for latestEvent, which it records first if
// necessary. RecordLatest records latestEvent before the stream starts a capture, is closed or
// waits for something else.
//
// If another library captures a call, symmem does not see the replays of that library's graph. From
// then on, a permanent event (replayEvent) orders the calls: every launch waits for it and records
// it again. The captured graph waits for it before its first call, and records it after its last
// call (Recording).
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
