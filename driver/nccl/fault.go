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

type faults struct {
	cfg      *driver.GroupConfig
	plane    control.Plane
	check    *atomic.Bool
	closing  *atomic.Bool
	history  *history
	messages *p2p.Messages
	direct   *directPath
	rasID    string // identifies the communicator in NCCL's RAS subsystem
}

// mismatch returns a MismatchError if other ranks have announced a different call for the ticket
// (the number of a collective in the group).
func (f *faults) mismatch(call *driver.Call, ticket uint64) error {
	if f.direct.announcements == nil {
		return nil
	}
	ranks := f.direct.announcements.Differing(ticket, call.Digest)
	if len(ranks) == 0 {
		return nil
	}
	return f.cfg.Mismatch(ticket, call, ranks...)
}

// launchedMismatch is like mismatch for a ticket that this rank has launched. It returns nil if
// calls are not compared.
func (f *faults) launchedMismatch(ticket uint64) error {
	call := f.history.callOf(ticket)
	if call == nil || !f.check.Load() {
		return nil
	}
	return f.mismatch(call, ticket)
}

// checkKernels makes the group fail if a kernel has reported a fault, and returns the cause of the
// failure. If there is no fault, checkKernels returns nil.
func (f *faults) checkKernels() error {
	err := f.kernelFault()
	if err == nil {
		return nil
	}
	_ = f.plane.Fail(err)
	return f.plane.Cause()
}

func (f *faults) kernelFault() error {
	report, found := f.direct.exchange.Reported()
	if !found {
		return nil
	}
	call, ticket := f.history.launches.CallOf(&report)
	operation := f.describe(call, ticket, report.Epoch)
	switch report.Fault() {
	case kernels.Diverged:
		if ticket != 0 {
			if err := f.mismatch(call, ticket); err != nil {
				return err // names all ranks that differ; the report names only one
			}
		}
		e := f.cfg.Mismatch(cmp.Or(ticket, report.Epoch), call, int(report.Ranks))
		e.Launch = ticket == 0
		return e
	case kernels.TimedOut:
		e := &driver.TimeoutError{
			InCall: operation, Waited: f.cfg.Timeout.Get(), Members: f.cfg.Ranks,
		}
		for set := report.Ranks; set != 0; set &= set - 1 {
			e.Missing = append(e.Missing, f.cfg.Ranks[bits.TrailingZeros32(set)])
		}
		e.Machines = f.cfg.MachinesOf(e.Missing)
		return e
	default:
		return fmt.Errorf("%s: a kernel reported fault %d", operation, report.Fault())
	}
}

// describe describes a call by its ticket. If the ticket is 0, describe uses the number of the
// kernel launch.
func (f *faults) describe(call *driver.Call, ticket, launch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, f.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, launch, f.cfg.Name())
	}
	if position := call.Recorded.String(); position != "" {
		text += ", " + position
	}
	return text
}

// checkPeers makes the group fail if a kernel has reported a fault, or if a peer is lost or has
// failed.
func (f *faults) checkPeers() {
	if f.closing.Load() || f.plane.Cause() != nil || f.checkKernels() != nil || !f.plane.PeerFailed() {
		return
	}
	_ = f.plane.Fail(f.plane.PeerFault("between calls of group " + f.cfg.Name()))
}

// collectiveWait describes a wait for a collective. A collectiveWait is reused, because the bound
// methods in wait would be allocated again otherwise.
type collectiveWait struct {
	faults *faults
	stream *stream.Stream // the stream that must become idle, or nil
	wait   control.Wait
}

func (f *faults) newWait(ticket uint64, operation driver.Operation) *collectiveWait {
	w := &collectiveWait{faults: f}
	w.wait = control.Wait{
		Ticket: ticket, Operation: operation, CallText: w.describe, Why: w.findFault, Counts: w.counts,
	}
	return w
}

func (w *collectiveWait) describe() string {
	return fmt.Sprintf("%v %d of group %s", w.wait.Operation, w.wait.Ticket, w.faults.cfg.Name())
}

// findFault implements control.Wait.Why. It checks the reports of kernels first, because a fault in
// a kernel ends all waits.
func (w *collectiveWait) findFault() error {
	if err := w.faults.kernelFault(); err != nil {
		return err
	}
	if err := w.faults.messages.Examine(); err != nil {
		return err
	}
	return w.faults.launchedMismatch(w.wait.Ticket)
}

func (w *collectiveWait) counts() string {
	f := w.faults
	if f.plane.Cause() != nil {
		return "" // the cause already contains the counts
	}
	return describeCounts(f.rasID, f.cfg, f.cfg.Timeout.Get())
}

func (w *collectiveWait) idle() bool { return w.stream.Idle() }

// complete reports whether every rank has launched the collective with the given ticket and nothing
// prevents its completion.
func (f *faults) complete(ticket uint64) bool {
	return f.plane.Diagnose(f.newWait(ticket, driver.Barrier).wait, time.Time{}) == nil
}

// failAfterPeer calls failAfterPeerInCall with the next ticket, because the call has no ticket yet.
func (f *faults) failAfterPeer(call *driver.Call) error {
	ticket, _ := f.history.last()
	return f.failAfterPeerInCall(call, ticket+1)
}

func (f *faults) failAfterPeerInCall(call *driver.Call, ticket uint64) error {
	if err := f.plane.Cause(); err != nil {
		return err
	}
	// Use the text of a wait for the call, because ranks compare InCall to find out whether they
	// were in the same call.
	wait := f.newWait(ticket, call.Operation).wait
	if err := f.plane.Diagnose(wait, time.Now()); err != nil {
		return f.plane.Fail(err)
	}
	return f.plane.Fail(f.plane.PeerFault(wait.CallText()))
}

// failAfterQueueError makes the group fail because this rank could not queue a call, for which the
// other ranks would wait forever.
func (f *faults) failAfterQueueError(call *driver.Call, err error) error {
	if cause := f.plane.Cause(); cause != nil {
		return cause // the cause also made the call to NCCL fail
	}
	if f.plane.PeerFailed() {
		return f.failAfterPeer(call) // a failed peer no longer shares memory, which probably caused err
	}
	return f.plane.Fail(fmt.Errorf("%v on group %s: %w", call.Operation, f.cfg.Name(), err))
}
