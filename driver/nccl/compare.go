package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer compares calls across ranks. A ticket is the number of a collective in the group.
type comparer struct {
	cfg          *driver.GroupConfig
	plane        control.Plane
	direct       *directPath
	faults       *faults
	comparedCall atomic.Pointer[driver.Call] // by compareOverPlane, or nil
}

// announce publishes the call's digest (a hash of its arguments). It must be called before the
// history records the call, because other ranks look for the reason of a failure in the
// announcements.
func (c *comparer) announce(call *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, call.Digest)
	}
}

// compare checks that all ranks launch the same call, which this rank has announced.
func (c *comparer) compare(call *driver.Call, ticket uint64, kernelsWillCompare bool) error {
	if kernelsWillCompare && c.direct.announcements != nil {
		return c.checkPeersBeforeKernels(call, ticket)
	}

	return c.compareOverPlane(call, ticket)
}

// compareOverPlane uses the plane, the connection between ranks outside NCCL.
func (c *comparer) compareOverPlane(call *driver.Call, ticket uint64) error {
	c.comparedCall.Store(call)
	defer c.comparedCall.Store(nil)
	err := c.plane.Compare(ticket, call)
	if err == nil && call.Operation == driver.AllToAllV {
		err = c.compareSplits(call, ticket)
	}

	return err
}

// compareSplits prevents hangs of NCCL if ranks send and expect different sizes.
func (c *comparer) compareSplits(call *driver.Call, ticket uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	encodedSplits, err := c.plane.Exchange(ctx, driver.LaneCalls, encodeSplits(call.Splits))
	if err != nil {
		err = fmt.Errorf("%v %d of group %s: %w", call.Operation, ticket, c.cfg.Name(), err)
	} else {
		err = compareSplits(c.cfg, ticket, encodedSplits)
	}

	if err != nil {
		return c.plane.Fail(err)
	}

	return nil
}

// checkPeersBeforeKernels returns an error if a peer has failed, although the kernels might
// succeed.
func (c *comparer) checkPeersBeforeKernels(call *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}

	if err := c.faults.findMismatch(call, ticket); err != nil {
		return c.plane.Fail(err)
	}

	return c.faults.failAfterPeerInCall(call, ticket)
}
