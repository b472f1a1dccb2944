// Package direct manages the state that a group's direct kernels (package kernels) share: the
// memory through which they exchange data, the order of their launches, and a history of these
// launches.
//
// # Exchange memory
//
// An Exchange is open on all ranks of a group or on none: in Open the ranks agree whether to open
// it and, if not, why. Kernels and the host communicate through its report, a block of host memory.
// Stop ends the kernels: running kernels poll a word of the report, and kernels that start later
// read a copy of the word on the GPU, which a goroutine updates. Close is called once no kernel of
// the group is running or can still start: from then on new plans cannot get its addresses
// (Places), and the contents of the report are kept. If a kernel of the process is stuck, Close
// does nothing, and the exchange remains open. Exchange.mu guards whether there is a report; the
// addresses are written before the group is used, and by Close.
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
// there is none. RecordLatest records that event ahead of Begin, when the stream starts a capture,
// is closed or is about to wait for something else. ForgetLatest clears latest and latestEvent when
// the stream is abandoned.
//
// Once another library has captured a call, its replays are invisible to us. From then on there is
// one permanent event (replayEvent): every launch waits for it and records it again, and so does
// each capture, before its first call and after its last (Recording). Recordings numbers the
// captures identically on all ranks. The end of such a capture is not visible, so the last 16
// (OpenRecordings) are assumed open.
//
// # Launches
//
// Kernels count their calls, and the host counts its launches. Given a kernel's report, Launches
// finds the recent launch with the reported number and digest. If replays of other libraries have
// advanced the kernels' count, or the call is in a capture of another library, it searches by the
// digest alone.
//
// # Locks
//
// The lock of their group guards LaunchOrder and Recordings, except for the fields that
// RecordLatest changes, which LaunchOrder.mu guards: RecordLatest must not take the group's lock,
// which may be held while ranks wait for each other. Package nccl documents the order of all locks
// of the backend.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
