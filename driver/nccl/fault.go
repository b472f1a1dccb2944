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
	plane             control.Plane
	comparisonEnabled *atomic.Bool
	isClosing         *atomic.Bool
	history           *history
	messages          *p2p.Messages
	direct            *directPath
	// rasID is the communicator's name in NCCL's RAS (monitoring) subsystem, or empty if a query
	// could crash NCCL.
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

// findLaunchedMismatch returns an error if other ranks have announced a different call than the
// one that this rank has launched with the ticket. It returns nil if calls are not compared.
func (f *faults) findLaunchedMismatch(ticket uint64) error {
	call := f.history.callOf(ticket)
	if call == nil || !f.comparisonEnabled.Load() {
		return nil
	}
	return f.findMismatch(call, ticket)
}

// checkKernels makes the group fail if one of symmem's own kernels has reported a fault. It
// returns the cause of the failure, or nil without a fault.
func (f *faults) checkKernels() error {
	err := f.findKernelFault()
	if err == nil {
		return nil
	}
	_ = f.plane.Fail(err)
	return f.plane.Cause()
}

// findKernelFault returns the error that one of symmem's own kernels has reported, or nil. Unlike
// checkKernels, it does not make the group fail.
func (f *faults) findKernelFault() error {
	report, found := f.direct.exchange.ReadReport()
	if !found {
		return nil
	}
	// ticket is 0 if it is unknown, because another library has replayed calls.
	call, ticket := f.history.launches.CallOf(&report)
	kernelLaunch := report.Epoch
	callText := f.describeCall(call, ticket, kernelLaunch)
	switch report.Fault() {
	case kernels.Diverged:
		if ticket != 0 {
			if err := f.findMismatch(call, ticket); err != nil {
				return err // lists all ranks with a different call; the report has only one
			}
		}
		differingRank := int(report.Ranks)
		err := f.cfg.Mismatch(cmp.Or(ticket, kernelLaunch), call, differingRank)
		err.Launch = ticket == 0
		return err
	case kernels.TimedOut:
		err := &driver.TimeoutError{
			InCall: callText, Waited: f.cfg.Timeout.Get(), Members: f.cfg.Ranks,
		}
		for set := report.Ranks; set != 0; set &= set - 1 { // bit r is set if group rank r is missing
			err.Missing = append(err.Missing, f.cfg.Ranks[bits.TrailingZeros32(set)])
		}
		err.Machines = f.cfg.MachinesOf(err.Missing)
		return err
	default:
		return fmt.Errorf("%s: a kernel reported fault %d", callText, report.Fault())
	}
}

// describeCall returns the text that identifies a call in an error. It contains the ticket or, if
// the ticket is unknown (0), the number of the kernel launch.
func (f *faults) describeCall(call *driver.Call, ticket, kernelLaunch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, f.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, kernelLaunch, f.cfg.Name())
	}
	if position := call.Recorded.String(); position != "" {
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

type collectiveWait struct {
	faults *faults
	stream *stream.Stream // the stream that must become idle, or nil
	wait   control.Wait
}

// newCollectiveWait returns a wait whose Done is not set. Callers may set Done, and change the
// ticket and the operation.
func (f *faults) newCollectiveWait(ticket uint64, operation driver.Operation) *collectiveWait {
	w := &collectiveWait{faults: f}
	w.wait = control.Wait{
		Ticket: ticket, Operation: operation, CallText: w.describeCall, FindFault: w.findFault,
		CountsText: w.countsText,
	}
	return w
}

func (w *collectiveWait) describeCall() string {
	return fmt.Sprintf("%v %d of group %s", w.wait.Operation, w.wait.Ticket, w.faults.cfg.Name())
}

// findFault returns an error if a kernel has reported a fault, a message cannot be delivered, or
// other ranks have launched a different call. It examines kernels first, because their faults end
// all waits.
func (w *collectiveWait) findFault() error {
	if err := w.faults.findKernelFault(); err != nil {
		return err
	}
	if err := w.faults.messages.Examine(); err != nil {
		return err
	}
	return w.faults.findLaunchedMismatch(w.wait.Ticket)
}

func (w *collectiveWait) countsText() string {
	f := w.faults
	if f.rasID == "" || f.plane.Cause() != nil {
		return "" // no query is allowed, or Cause already contains the counts
	}
	return describeCounts(f.rasID, f.cfg, f.cfg.Timeout.Get())
}

func (w *collectiveWait) isStreamIdle() bool { return w.stream.Idle() }

// canComplete reports whether every rank has launched the collective and none has failed.
func (f *faults) canComplete(ticket uint64) bool {
	const anyOperation = driver.Barrier // only for the text of the error
	var longAgo time.Time               // a missing rank is an error at once
	return f.plane.Diagnose(f.newCollectiveWait(ticket, anyOperation).wait, longAgo) == nil
}

// failAfterPeer is failAfterPeerInCall for a call that has no ticket yet.
func (f *faults) failAfterPeer(call *driver.Call) error {
	lastTicket, _ := f.history.lastCall()
	return f.failAfterPeerInCall(call, lastTicket+1)
}

// failAfterPeerInCall makes the group fail in a call after another rank has failed, and returns
// the cause.
func (f *faults) failAfterPeerInCall(call *driver.Call, ticket uint64) error {
	if err := f.plane.Cause(); err != nil {
		return err
	}
	// Ranks compare the text of the wait to find out whether they were in the same call.
	wait := f.newCollectiveWait(ticket, call.Operation).wait
	if err := f.plane.Diagnose(wait, time.Now()); err != nil {
		return f.plane.Fail(err)
	}
	return f.plane.Fail(f.plane.PeerFault(wait.CallText()))
}

// failAfterQueueError makes the group fail after a call could not be queued because of err, since
// other ranks would wait for the call. It returns the cause of the failure.
func (f *faults) failAfterQueueError(call *driver.Call, err error) error {
	if cause := f.plane.Cause(); cause != nil {
		return cause
	}
	if f.plane.PeerFailed() {
		return f.failAfterPeer(call) // probably caused err
	}
	return f.plane.Fail(fmt.Errorf("%v on group %s: %w", call.Operation, f.cfg.Name(), err))
}
