package nccl

import (
	"cmp"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// If a group cannot complete a call, it fails on all ranks, with an error as its cause. For
// example, rank 0 launches an AllReduce as the group's collective 7, but rank 1 launches a
// Broadcast. The number 7 is the ticket of the call. There are these ways to find a failure:
//
//   - Each rank announces the calls that it launches, so rank 0 can find that rank 1 has announced
//     another call for ticket 7. This is a mismatch.
//   - One of symmem's own kernels, which run a call on the GPU, reports a fault: a mismatch, or a
//     rank that is missing after the timeout.
//   - The plane, a connection between the ranks outside NCCL, knows that a peer (another rank) has
//     failed. It also keeps the cause.

// faults finds the cause of a failure and makes the group fail.
type faults struct {
	cfg               *driver.GroupConfig
	plane             control.Plane
	comparisonEnabled *atomic.Bool // set if ranks compare their calls
	isClosing         *atomic.Bool // set once the program closes the group
	history           *history     // this rank's last calls
	messages          *p2p.Messages
	direct            *directPath // for symmem's own kernels
	// rasID is the communicator's name in RAS, NCCL's subsystem for monitoring. It is empty if a
	// query could crash NCCL.
	rasID string
}

// findMismatch returns an error if other ranks have announced a different call for the ticket.
func (f *faults) findMismatch(call *driver.Call, ticket uint64) error {
	if f.direct.announcements == nil {
		return nil
	}

	ranks := f.direct.announcements.DifferingRanks(ticket, call.Digest)
	if len(ranks) == 0 {
		return nil
	}

	return f.cfg.Mismatch(ticket, call, ranks...)
}

// findLaunchedMismatch is findMismatch for the call that this rank has launched with the ticket. It
// returns nil if there is no such call, or if ranks do not compare their calls.
func (f *faults) findLaunchedMismatch(ticket uint64) error {
	call := f.history.callOf(ticket)
	if call == nil || !f.comparisonEnabled.Load() {
		return nil
	}

	return f.findMismatch(call, ticket)
}

// kernelFault is a fault that one of symmem's own kernels has reported.
type kernelFault struct {
	report kernels.Report
	call   *driver.Call
	// ticket is the call's ticket, or 0 if it is unknown: another library has captured the call in a
	// CUDA graph and replayed it. The number of the kernel launch (report.Epoch) is always known.
	ticket uint64
}

// findKernelFault returns the error for a fault that one of symmem's own kernels has reported, or
// nil. The group does not fail yet.
func (f *faults) findKernelFault() error {
	report, found := f.direct.exchange.ReadReport()
	if !found {
		return nil
	}

	call, ticket := f.history.launches.CallOf(&report)
	k := kernelFault{report: report, call: call, ticket: ticket}
	switch report.Fault() {
	case kernels.Diverged:
		return f.kernelMismatch(&k)
	case kernels.TimedOut:
		return f.kernelTimeout(&k)
	default:
		callText := f.describeCall(call, ticket, report.Epoch)
		return fmt.Errorf("%s: a kernel reported fault %d", callText, report.Fault())
	}
}

// kernelMismatch returns the error after a kernel has found a rank with a different call.
func (f *faults) kernelMismatch(k *kernelFault) error {
	isTicketKnown := k.ticket != 0
	if isTicketKnown {
		// This error lists all ranks with a different call. The report has only one.
		if err := f.findMismatch(k.call, k.ticket); err != nil {
			return err
		}
	}

	number := cmp.Or(k.ticket, k.report.Epoch) // the ticket if it is known
	differingRank := int(k.report.Ranks)
	err := f.cfg.Mismatch(number, k.call, differingRank)
	err.Launch = !isTicketKnown // number is that of the kernel launch
	return err
}

// kernelTimeout returns the error after a kernel has waited too long for other ranks.
func (f *faults) kernelTimeout(k *kernelFault) error {
	err := &driver.TimeoutError{
		InCall: f.describeCall(k.call, k.ticket, k.report.Epoch),
		Waited: f.cfg.Timeout.Get(), Members: f.cfg.Ranks,
	}
	missing := k.report.Ranks // bit r is set if group rank r is missing
	for missing != 0 {
		groupRank := bits.TrailingZeros32(missing)
		err.Missing = append(err.Missing, f.cfg.Ranks[groupRank])
		missing &= missing - 1 // clears the bit of groupRank
	}

	err.Machines = f.cfg.MachinesOf(err.Missing)
	return err
}

// describeCall returns the text that identifies a call in an error. It contains the ticket or, if
// the ticket is 0, the number of the kernel launch.
func (f *faults) describeCall(call *driver.Call, ticket, kernelLaunch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, f.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, kernelLaunch, f.cfg.Name())
	}

	if position := call.Recorded.String(); position != "" { // in a CUDA graph
		text += ", " + position
	}

	return text
}

// checkKernels makes the group fail if one of symmem's own kernels has reported a fault. It then
// returns the cause of the failure, and otherwise nil.
func (f *faults) checkKernels() error {
	err := f.findKernelFault()
	if err == nil {
		return nil
	}

	_ = f.plane.Fail(err)
	return f.plane.Cause() // err, or the cause of an earlier failure
}

// checkPeers makes the group fail if one of symmem's own kernels has reported a fault or a peer has
// failed. It does nothing while the group is being closed.
func (f *faults) checkPeers() {
	if f.isClosing.Load() || f.plane.Cause() != nil {
		return
	}

	if f.checkKernels() != nil {
		return
	}

	if f.plane.PeerFailed() {
		_ = f.plane.Fail(f.plane.PeerFault("between calls of group " + f.cfg.Name()))
	}
}

// collectiveWait is a wait for a collective.
type collectiveWait struct {
	faults    *faults
	stream    *stream.Stream // for isStreamIdle; nil if that is not used
	planeWait control.Wait   // describes the wait to the plane; its functions are the methods below
}

// newCollectiveWait returns a wait for the collective with the given ticket. Callers may set
// planeWait.Done, and may change the ticket and the operation later.
func (f *faults) newCollectiveWait(ticket uint64, operation driver.Operation) *collectiveWait {
	w := &collectiveWait{faults: f}
	w.planeWait = control.Wait{
		Ticket: ticket, Operation: operation, CallText: w.describeCall, FindFault: w.findFault,
		CountsText: w.countsText,
	}
	return w
}

func (w *collectiveWait) describeCall() string {
	return fmt.Sprintf("%v %d of group %s", w.planeWait.Operation, w.planeWait.Ticket,
		w.faults.cfg.Name())
}

// findFault returns an error if a kernel has reported a fault, a message cannot be delivered, or
// other ranks have launched a different call. It examines kernels first, because a fault of any
// kernel ends all waits.
func (w *collectiveWait) findFault() error {
	if err := w.faults.findKernelFault(); err != nil {
		return err
	}

	if err := w.faults.messages.Examine(); err != nil {
		return err
	}

	return w.faults.findLaunchedMismatch(w.planeWait.Ticket)
}

// countsText describes how many collectives each rank has launched, for the error of a wait that
// timed out. It may return "".
func (w *collectiveWait) countsText() string {
	f := w.faults
	if f.rasID == "" { // NCCL must not be queried
		return ""
	}

	if f.plane.Cause() != nil { // the cause contains the counts if they are known
		return ""
	}

	return describeCounts(f.rasID, f.cfg, f.cfg.Timeout.Get())
}

func (w *collectiveWait) isStreamIdle() bool { return w.stream.Idle() }

// canComplete reports whether every rank has launched the collective and none has failed.
func (f *faults) canComplete(ticket uint64) bool {
	const anyOperation = driver.Barrier // only for the text of the error
	var longAgo time.Time               // so that Diagnose reports a missing rank at once
	wait := f.newCollectiveWait(ticket, anyOperation).planeWait
	return f.plane.Diagnose(wait, longAgo) == nil
}

// failAfterPeer is failAfterPeerInCall for a call that has no ticket yet. It uses the next ticket.
func (f *faults) failAfterPeer(call *driver.Call) error {
	lastTicket, _ := f.history.lastCall()
	return f.failAfterPeerInCall(call, lastTicket+1)
}

// failAfterPeerInCall makes the group fail in the given call, because a peer has failed. It returns
// the cause of the failure.
func (f *faults) failAfterPeerInCall(call *driver.Call, ticket uint64) error {
	if err := f.plane.Cause(); err != nil {
		return err
	}

	// The wait describes the call. Ranks compare its text to find out whether they were in the same
	// call.
	wait := f.newCollectiveWait(ticket, call.Operation).planeWait
	if err := f.plane.Diagnose(wait, time.Now()); err != nil {
		return f.plane.Fail(err)
	}

	return f.plane.Fail(f.plane.PeerFault(wait.CallText()))
}

// failAfterQueueError makes the group fail after err has prevented a call from being queued. Other
// ranks would otherwise wait for the call. It returns the cause of the failure.
func (f *faults) failAfterQueueError(call *driver.Call, err error) error {
	if cause := f.plane.Cause(); cause != nil {
		return cause
	}

	if f.plane.PeerFailed() {
		return f.failAfterPeer(call) // probably caused err
	}

	return f.plane.Fail(fmt.Errorf("%v on group %s: %w", call.Operation, f.cfg.Name(), err))
}
