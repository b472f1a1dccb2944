package nccl

import (
	"cmp"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// faults finds the cause of a failure and fails the group with it.
type faults struct {
	cfg      *driver.GroupConfig
	plane    control.Plane
	check    *atomic.Bool
	closing  *atomic.Bool
	history  *history
	messages *p2p.Messages
	direct   *directPath
	timeout  time.Duration
	rasID    string // identifies the communicator in NCCL's RAS
}

// mismatch returns a MismatchError if other ranks have announced a different call under the
// ticket, or nil.
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

// ownCallDiffering returns a MismatchError if calls are compared and other ranks have announced a
// different call under a ticket of this rank, or nil.
func (f *faults) ownCallDiffering(ticket uint64) error {
	p := f.history.callOf(ticket)
	if p == nil || !f.check.Load() {
		return nil
	}
	return f.mismatch(p, ticket)
}

// checkKernels fails the group if a kernel has reported a fault, and returns the first one.
func (f *faults) checkKernels() error {
	err := f.kernelFault()
	if err == nil {
		return nil
	}
	_ = f.plane.Fail(err)
	return f.plane.Cause()
}

// kernelFault returns the fault that a kernel has reported, or nil.
func (f *faults) kernelFault() error {
	report, found := f.direct.exchange.Reported()
	if !found {
		return nil
	}
	call, ticket := f.history.launches.CallOf(&report)
	doing := f.doing(call, ticket, report.Epoch)
	switch report.Fault() {
	case kernels.Diverged:
		if ticket != 0 {
			if err := f.mismatch(call, ticket); err != nil {
				return err // it names all ranks that differ
			}
		}
		differs := f.cfg.Mismatch(cmp.Or(ticket, report.Epoch), call, int(report.Ranks))
		differs.Launch = ticket == 0
		return differs
	case kernels.TimedOut:
		e := &driver.TimeoutError{
			Doing: doing, Waited: f.timeout, Members: f.cfg.Ranks,
		}
		for set := report.Ranks; set != 0; set &= set - 1 {
			e.Missing = append(e.Missing, f.cfg.Ranks[bits.TrailingZeros32(set)])
		}
		return e
	default:
		return fmt.Errorf("%s: a kernel has reported fault %d", doing, report.Fault())
	}
}

// doing describes a call by its ticket, or by the number of the kernel launch if the ticket is not
// known.
func (f *faults) doing(call *driver.Call, ticket, launch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, f.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, launch, f.cfg.Name())
	}
	if at := call.Recorded.String(); at != "" {
		text += ", " + at
	}
	return text
}

// checkPeers fails the group if a kernel has reported a fault, or a peer has failed or is lost.
func (f *faults) checkPeers() {
	if f.closing.Load() || f.plane.Cause() != nil || f.checkKernels() != nil || !f.plane.PeerFailed() {
		return
	}
	_ = f.plane.Fail(f.plane.PeerFault("between calls of group " + f.cfg.Name()))
}

// waitFor describes the wait for a collective.
func (f *faults) waitFor(ticket uint64, operation driver.Operation) control.Wait {
	return control.Wait{
		Ticket: ticket, Operation: operation,
		Doing: func() string { return fmt.Sprintf("%v %d of group %s", operation, ticket, f.cfg.Name()) },
		Why: func() error {
			// Reports of kernels come first, since such a fault ends all waits.
			if err := f.kernelFault(); err != nil {
				return err
			}
			if err := f.messages.Examine(); err != nil {
				return err
			}
			return f.ownCallDiffering(ticket)
		},
		Counts: func() string {
			if f.plane.Cause() != nil {
				return "" // the error has them already
			}
			return countsOf(f.rasID, f.cfg, f.timeout)
		},
	}
}

// complete reports whether every rank has launched a collective, and nothing prevents its end.
func (f *faults) complete(ticket uint64) bool {
	return f.plane.Diagnose(f.waitFor(ticket, driver.Barrier), time.Time{}) == nil
}

// afterPeerFault calls afterPeerFaultAt for a call without a ticket.
func (f *faults) afterPeerFault(p *driver.Call) error {
	ticket, _ := f.history.last()
	return f.afterPeerFaultAt(p, ticket+1)
}

// afterPeerFaultAt fails the group after a peer has failed, and returns the cause.
func (f *faults) afterPeerFaultAt(p *driver.Call, ticket uint64) error {
	if err := f.plane.Cause(); err != nil {
		return err
	}
	// The text must equal that of a wait for the call, because ranks compare their positions.
	wait := f.waitFor(ticket, p.Operation)
	if err := f.plane.Diagnose(wait, time.Now()); err != nil {
		return f.plane.Fail(err)
	}
	return f.plane.Fail(f.plane.PeerFault(wait.Doing()))
}

// failUnqueued fails the group over a call that this rank could not queue, although other ranks
// assume that it was launched: nothing else would end their waits for it.
func (f *faults) failUnqueued(p *driver.Call, err error) error {
	if cause := f.plane.Cause(); cause != nil {
		return cause // it is the reason why NCCL's call has failed
	}
	if f.plane.PeerFailed() {
		return f.afterPeerFault(p) // it may be the reason: such a peer shares no more memory
	}
	return f.plane.Fail(fmt.Errorf("%v on group %s: %w", p.Operation, f.cfg.Name(), err))
}
