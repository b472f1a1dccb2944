package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer checks that all ranks launch the same calls. A ticket is the number of a call in the
// group.
type comparer struct {
	cfg    *driver.GroupConfig
	plane  control.Plane
	direct *directPath
	faults *faults
	// call is the call that a launch is comparing, or nil. Meanwhile, the launch checks the peers
	// itself.
	comparedCall atomic.Pointer[driver.Call]
}

// announce publishes the call's digest to the other ranks if the ranks share memory. A direct
// kernel cannot be compared with a call to NCCL in any other way.
//
// announce must be called before the history records the call. From then on, a difference may make
// the group fail, and the other ranks look for the reason in the announcements.
func (c *comparer) announce(call *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, call.Digest)
	}
}

// compare checks that all ranks launch the same call, which this rank has announced. kernelsCompare
// reports whether the call's kernels compare calls themselves.
func (c *comparer) compare(call *driver.Call, ticket uint64, kernelsWillCompare bool) error {
	if kernelsWillCompare && c.direct.announcements != nil {
		return c.checkPeersBeforeKernels(call, ticket)
	}
	return c.compareOverPlane(call, ticket)
}

func (c *comparer) compareOverPlane(call *driver.Call, ticket uint64) error {
	c.comparedCall.Store(call)
	defer c.comparedCall.Store(nil)
	err := c.plane.Compare(ticket, call)
	if err == nil && call.Operation == driver.AllToAllV {
		err = c.compareSplits(call, ticket)
	}
	return err
}

// compareSplits compares the sizes that ranks send with those that their peers expect. If they
// differed, NCCL would wait forever.
func (c *comparer) compareSplits(call *driver.Call, ticket uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	encodedSplits, err := c.plane.Exchange(ctx, driver.LaneCalls, encodeSplits(call.Splits))
	if err != nil {
		err = fmt.Errorf("%v %d of group %s: %w", call.Operation, ticket, c.cfg.Name(), err)
	} else {
		err = differingSplits(c.cfg, ticket, encodedSplits)
	}
	if err != nil {
		return c.plane.Fail(err)
	}
	return nil
}

// checkPeersBeforeKernels returns an error if a peer has failed. Kernels that compare calls
// themselves might succeed nevertheless.
func (c *comparer) checkPeersBeforeKernels(call *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}
	if err := c.faults.findMismatch(call, ticket); err != nil {
		return c.plane.Fail(err) // the peer may have failed for the same reason
	}
	return c.faults.failAfterPeerInCall(call, ticket)
}
