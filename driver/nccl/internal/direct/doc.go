// Package direct holds what the kernels of the direct path (package kernels) share in a group: the
// memory through which they exchange data, their order, and the record of their launches.
//
// # Exchange memory
//
// An Exchange is open on all ranks of a group or on none: Open agrees on that, and on the reason if
// it stays closed. Kernels and the host communicate through its report. Stop ends the kernels:
// running ones poll a word of the report, later ones read a copy of it on the GPU, which a
// goroutine updates. Close is called once no kernel of the group is running or can still start:
// from then on new plans get no Places, and the contents of the report are kept. If a kernel of the
// process is stuck, Close does nothing, and the exchange stays open. Exchange.mu guards whether
// there is a report; the addresses are written before the group is used, and by Close.
//
// # Order
//
// Kernels of one group never overlap on a rank, because they share exchange memory and the call
// counter. A direct kernel does not overlap with an NCCL kernel of the group either, since the two
// may not fit on a GPU together. LaunchOrder orders the launches with events, whatever streams they
// are on; it leaves the order of two NCCL launches to NCCL.
//
// LaunchOrder remembers the stream of the latest launch while an event can still be recorded there
// (latest), or the event after that launch (latestEvent); before the first launch it has neither.
// Begin makes the stream of the next launch wait for that event, and records the event first if
// there is none. RecordLatest records it earlier, when the stream captures, ends or is about to
// wait for something else. ForgetLatest drops both when the stream is abandoned.
//
// Once another library has captured a call, its replays are invisible to us. From then on there is
// one permanent event (replayEvent): every launch waits for it and records it again, and so does
// each capture, before its first call and after its last (Recording). Recordings numbers the
// captures identically on all ranks. The end of such a capture is not visible, so the latest
// OpenRecordings may still be open.
//
// # Launches
//
// Kernels count their calls, and this rank records them: Launches finds the call of a report by its
// number and digest among the latest launches. Where replays have advanced the kernels' count it
// searches by the digest alone, as it always does for calls in captures of other libraries.
//
// # Locks
//
// The lock of their group guards LaunchOrder and Recordings, except for the fields that
// RecordLatest changes: the group's lock is held while ranks wait for each other, and a stream that
// is about to wait must not wait for it. LaunchOrder.mu guards those fields. Package nccl documents
// the order of all locks of the backend.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
