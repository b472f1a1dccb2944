// Package direct manages the state that the direct kernels of a group share. (Direct kernels, in
// package kernels, implement collectives without NCCL.) This state consists of the memory through
// which the kernels exchange data, the order of their launches, and a history of the launches.
//
// # Exchange memory
//
// An Exchange is open on all ranks of a group or on none. In Open, the ranks agree on whether to
// open it. If they do not open it, they agree on the reason. Kernels and the host communicate
// through the report, a block of host memory. Stop makes the kernels exit: running kernels poll a
// word of the report, and kernels that start later read a copy of the word on the GPU, which a
// goroutine updates.
//
// Close is called once the group's last kernel has exited and no other can start. It frees the
// memory but keeps the contents of the report. Transport then no longer returns addresses for new
// plans. If a kernel of the process is stuck, Close does nothing and the exchange remains open.
// Exchange.mu guards the report. The addresses are written before the group is used, and by Close.
//
// # Order
//
// Kernels of one group never overlap on a rank, because they share exchange memory and the call
// counter. A direct kernel does not overlap with an NCCL kernel of the group either, because the
// two might not fit on a GPU together. LaunchOrder uses events to order the launches on all
// streams, except for consecutive NCCL launches, which NCCL itself orders.
//
// As long as an event can still be recorded on the stream of the latest launch, LaunchOrder
// stores that stream (latest). Once no event can be recorded there, LaunchOrder stores an event
// that marks the end of the launch (latestEvent). Begin makes the stream of the next launch wait
// for latestEvent, which it first records if necessary. RecordLatest records latestEvent earlier,
// when the stream starts a capture, is closed or is about to wait for something else.
// ForgetLatest clears latest and latestEvent when the stream is abandoned.
//
// If another library captures a call, symmem does not see the replays of that library's graph.
// From then on, a permanent event (replayEvent) orders the calls: every launch waits for the
// event and records it again. A captured graph waits for the event before its first call, and
// records it after its last call (Recording). Recordings numbers the captures identically on all
// ranks. Because symmem cannot see when such a capture ends, it treats the last 16 captures
// (OpenRecordings) as active.
//
// # Launches
//
// Kernels count their calls, and the host counts its launches. When a kernel reports a fault,
// Launches finds the recent launch with the reported number and digest. If replays by other
// libraries have advanced the kernels' count, or if the call is in another library's graph, the
// number does not help, and Launches searches by the digest alone.
//
// # Locks
//
// The group's lock guards Recordings and most of LaunchOrder. LaunchOrder.mu guards the fields that
// RecordLatest changes, because RecordLatest must not acquire the group's lock, which may be held
// while ranks wait for each other. Package nccl documents the order of all locks of the backend.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
