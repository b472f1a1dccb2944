// Package direct has what the kernels of the direct path (package kernels) share in a group: the
// memory that they write to each other, their order, and the record of their launches.
//
// # Exchange memory
//
// An Exchange is open on all ranks of a group or on none: Open agrees on that, and on a reason
// where it is none. Its report is where kernels and the host speak. Stop ends kernels: those that
// wait look at a word of the report, those to come at a copy of it on the GPU, which a goroutine
// makes. Close comes once no kernel of the group runs any more, nor will one: from then on there
// are no Places for new plans, and what the report has said is kept. Where a kernel of the process
// is stuck Close does nothing, and the exchange stays open. Exchange.mu guards whether there is a
// report; the addresses are written before the group is used, and by Close.
//
// # Order
//
// Kernels of one group never run at once on a rank: they share exchange memory, and the number of
// the call. Nor does one run at the same time as one of NCCL of the group, since the two may not
// fit on a GPU together. LaunchOrder orders launches by events, whatever streams they are on; two
// of NCCL's are left to it.
//
// It knows the stream of the latest launch, as long as an event can be recorded there (latest), or
// the event after that launch (latestEvent); neither before the first. Begin makes the stream of
// the next launch wait for that event, and records the event first if there is none. RecordLatest
// records it earlier, when the stream captures, ends or is about to wait for something else.
// ForgetLatest drops both where the stream is given up.
//
// Once another library has captured a call, whose replays are not seen, there is one event instead,
// for good (replayEvent): every launch waits for it and records it anew, and so does each
// capture, before its first call and after its last (Recording). Recordings numbers captures alike
// on all ranks. The end of one is not seen, so the latest OpenRecordings may go on.
//
// # Launches
//
// Kernels count calls, and so does this rank: Launches finds the call of a report by its number and
// digest, among the latest launches, and where replays have moved the count of the kernels by the
// digest alone; calls in captures of other libraries always by that.
//
// # Locks
//
// LaunchOrder and Recordings are guarded by the lock of their group, but for what RecordLatest
// changes: a stream that is about to wait is not to wait for that lock, which is held while ranks
// wait for each other. So LaunchOrder.mu guards that. The order is that of all packages of the
// backend: see package nccl.
//
// # Lock order
//
//	Launches.mu
//	Exchange.mu
//	LaunchOrder.mu
package direct
