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

// faults finds the cause of a failure and makes the group fail. A ticket is the number of a
// collective in the group.
type faults struct {
	cfg               *driver.GroupConfig
	plane             control.Plane // connects the ranks outside NCCL; keeps the cause of a failure
	comparisonEnabled *atomic.Bool  // set if ranks compare their calls
	isClosing         *atomic.Bool  // set once the program closes the group
	history           *history      // this rank's last calls
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

// checkKernels makes the group fail if one of symmem's own kernels has reported a fault, and
// returns the cause of the failure. Without such a report, it returns nil.
func (f *faults) checkKernels() error {
	err := f.findKernelFault()
	if err == nil {
		return nil
	}

	_ = f.plane.Fail(err)
	return f.plane.Cause() // err, or the cause of an earlier failure
}

// findKernelFault returns the error that one of symmem's own kernels has reported, or nil. Unlike
// checkKernels, it does not make the group fail.
func (f *faults) findKernelFault() error {
	report, found := f.direct.exchange.ReadReport()
	if !found {
		return nil
	}

	// The ticket is unknown (0) if another library has captured the call and replayed it.
	call, ticket := f.history.launches.CallOf(&report)
	kernelLaunch := report.Epoch // number of the kernel launch, which is always known
	callText := f.describeCall(call, ticket, kernelLaunch)
	switch report.Fault() {
	case kernels.Diverged:
		if ticket != 0 {
			// This error lists all ranks with a different call. The report has only one.
			if err := f.findMismatch(call, ticket); err != nil {
				return err
			}
		}

		number := cmp.Or(ticket, kernelLaunch) // the ticket if it is known
		differingRank := int(report.Ranks)
		err := f.cfg.Mismatch(number, call, differingRank)
		err.Launch = ticket == 0 // the error has the number of the launch instead of the ticket
		return err
	case kernels.TimedOut:
		err := &driver.TimeoutError{
			InCall: callText, Waited: f.cfg.Timeout.Get(), Members: f.cfg.Ranks,
		}
		// Bit r of Ranks is set if group rank r is missing. The loop clears the lowest bit each
		// time.
		for missing := report.Ranks; missing != 0; missing &= missing - 1 {
			groupRank := bits.TrailingZeros32(missing)
			err.Missing = append(err.Missing, f.cfg.Ranks[groupRank])
		}

		err.Machines = f.cfg.MachinesOf(err.Missing)
		return err
	default:
		return fmt.Errorf("%s: a kernel reported fault %d", callText, report.Fault()) // unknown fault
	}
}

// describeCall returns the text that identifies a call in an error. It contains the ticket or, if
// the ticket is unknown (0), the number of the kernel launch.
func (f *faults) describeCall(call *driver.Call, ticket, kernelLaunch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, f.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, kernelLaunch, f.cfg.Name())
	}

	if position := call.Recorded.String(); position != "" { // the position in a capture
		text += ", " + position
	}

	return text
}

// checkPeers makes the group fail if one of symmem's own kernels has reported a fault or another
// rank has failed. It does nothing while the group is being closed.
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

// collectiveWait is a wait for a collective. planeWait describes it to the plane. The functions in
// planeWait are methods of collectiveWait.
type collectiveWait struct {
	faults    *faults
	stream    *stream.Stream // for isStreamIdle; nil if that is not used
	planeWait control.Wait
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
// other ranks have launched a different call. It examines kernels first, because the fault of one
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

	if f.plane.Cause() != nil { // contains the counts if they are known
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

// failAfterPeerInCall makes the group fail in the given call, because another rank (a peer) has
// failed. It returns the cause of the failure.
func (f *faults) failAfterPeerInCall(call *driver.Call, ticket uint64) error {
	if err := f.plane.Cause(); err != nil {
		return err
	}

	// Ranks compare the text of the wait to find out whether they were in the same call.
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
