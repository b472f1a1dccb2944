package nccl

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// differing returns the error of a call that other ranks have launched otherwise, or nil.
func (c *communicator) differing(call *driver.Call, ticket uint64) error {
	if c.direct.announcements == nil {
		return nil
	}
	ranks := c.direct.announcements.Differing(ticket, call.Digest)
	if len(ranks) == 0 {
		return nil
	}
	return c.cfg.Mismatch(ticket, call, ranks...)
}

// launchedOtherwise reports whether other ranks have launched something else under a ticket of this
// rank.
func (c *communicator) launchedOtherwise(ticket uint64) error {
	p := c.history.of(ticket)
	if p == nil || !c.check.Load() {
		return nil
	}
	return c.differing(p, ticket)
}

// checkKernels fails the communicator if a kernel has reported a fault, and returns the first one.
func (c *communicator) checkKernels() error {
	err := c.kernelFault()
	if err == nil {
		return nil
	}
	_ = c.plane.Fail(err)
	return c.plane.Cause()
}

// kernelFault returns what a kernel has reported, as an error, or nil.
func (c *communicator) kernelFault() error {
	report, found := c.direct.exchange.Reported()
	if !found {
		return nil
	}
	call, ticket := c.history.launches.CallOf(&report)
	doing := c.doing(call, ticket, report.Epoch)
	switch report.Fault() {
	case kernels.Diverged:
		if ticket != 0 {
			if err := c.differing(call, ticket); err != nil {
				return err // it names all ranks
			}
		}
		differs := c.cfg.Mismatch(cmp.Or(ticket, report.Epoch), call, int(report.Ranks))
		differs.Launch = ticket == 0
		return differs
	case kernels.TimedOut:
		e := &driver.TimeoutError{
			Doing: doing, Waited: c.device.cfg.Timeout, Members: c.cfg.Ranks,
		}
		for set := report.Ranks; set != 0; set &= set - 1 {
			e.Missing = append(e.Missing, c.cfg.Ranks[bits.TrailingZeros32(set)])
		}
		return e
	default:
		return fmt.Errorf("%s: a kernel reports fault %d", doing, report.Fault())
	}
}

// doing names a call by its ticket, or, where that is not known, by the launch of the kernel.
func (c *communicator) doing(call *driver.Call, ticket, launch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, c.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, launch, c.cfg.Name())
	}
	if at := call.Recorded.String(); at != "" {
		text += ", " + at
	}
	return text
}

// CheckPeers fails the communicator if a kernel has reported a fault, or a peer has failed or is
// lost.
func (c *communicator) CheckPeers() {
	if c.closing.Load() || c.plane.Cause() != nil || c.checkKernels() != nil || !c.plane.PeerFailed() {
		return
	}
	_ = c.plane.Fail(c.plane.PeerFault("between calls of group " + c.cfg.Name()))
}

// Exchange sends payload to every rank and returns everybody's.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		_ = c.checkKernels() // what a kernel has reported ends the exchange
	}
	return c.plane.Exchange(ctx, lane, payload)
}

// waitFor describes the wait for a collective.
func (c *communicator) waitFor(ticket uint64, operation driver.Operation) control.Wait {
	return control.Wait{
		Ticket: ticket, Operation: operation,
		Doing: func() string { return fmt.Sprintf("%v %d of group %s", operation, ticket, c.cfg.Name()) },
		Why: func() error {
			// Reports come first: they end what waits.
			if err := c.kernelFault(); err != nil {
				return err
			}
			if err := c.messages.Examine(); err != nil {
				return err
			}
			return c.launchedOtherwise(ticket)
		},
		Counts: func() string {
			if c.plane.Cause() != nil {
				return "" // it was asked before
			}
			return countsOf(c.unique, &c.cfg, c.device.cfg.Timeout)
		},
	}
}

// complete reports whether every rank has launched a collective, and nothing keeps it from its end.
func (c *communicator) complete(ticket uint64) bool {
	return c.plane.Diagnose(c.waitFor(ticket, driver.Barrier), time.Time{}) == nil
}

// afterPeerFault is afterPeerFaultAt for a call that has no ticket.
func (c *communicator) afterPeerFault(p *driver.Call) error {
	ticket, _ := c.history.last()
	return c.afterPeerFaultAt(p, ticket+1)
}

// afterPeerFaultAt fails the communicator after a peer has failed, and says why this rank cannot go
// on.
func (c *communicator) afterPeerFaultAt(p *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil {
		return err
	}
	// Worded as the wait for it would be: ranks compare where each of them is.
	wait := c.waitFor(ticket, p.Operation)
	if err := c.plane.Diagnose(wait, time.Now()); err != nil {
		return c.plane.Fail(err)
	}
	return c.plane.Fail(c.plane.PeerFault(wait.Doing()))
}

// failUnqueued fails the communicator over a call that others take for launched, and which this
// rank could not queue: nothing else would end their waits for it.
func (c *communicator) failUnqueued(p *driver.Call, err error) error {
	if cause := c.plane.Cause(); cause != nil {
		return cause // by which NCCL's call was ended, too
	}
	if c.plane.PeerFailed() {
		return c.afterPeerFault(p) // a peer that has failed hands out no memory any more
	}
	return c.plane.Fail(fmt.Errorf("%v on group %s: %w", p.Operation, c.cfg.Name(), err))
}
