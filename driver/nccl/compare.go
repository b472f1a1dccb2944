package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer detects ranks that launch different calls, such as an AllReduce on rank 0 and a
// Broadcast on rank 1. Ranks exchange digests (hashes) of a call's arguments. Symmem's own kernels
// compare them on the GPU. For other calls, the hosts compare them before the launch.
//
// A ticket is the number of a collective in the group.
type comparer struct {
	cfg    *driver.GroupConfig
	plane  control.Plane // connects the ranks outside NCCL
	direct *directPath   // runs symmem's own kernels
	faults *faults

	comparedCall atomic.Pointer[driver.Call] // the call that the hosts are comparing, or nil
}

// announce publishes the digest of a call, so that other ranks can explain a failure.
func (c *comparer) announce(call *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, call.Digest)
	}
}

// compare leaves the comparison to symmem's own kernels if they run the call and the ranks can
// announce digests.
func (c *comparer) compare(call *driver.Call, ticket uint64, kernelsWillCompare bool) error {
	if kernelsWillCompare && c.direct.announcements != nil {
		return c.checkPeerFailure(call, ticket)
	}

	return c.compareOverPlane(call, ticket)
}

// checkPeerFailure returns an error if the group or a peer has failed. It looks for a mismatch
// first, because a mismatch explains the failure of a peer best.
func (c *comparer) checkPeerFailure(call *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil {
		return err
	}

	if !c.plane.PeerFailed() {
		return nil
	}

	if err := c.faults.findMismatch(call, ticket); err != nil {
		return c.plane.Fail(err)
	}

	return c.faults.failAfterPeerInCall(call, ticket)
}

// compareOverPlane waits until all ranks have exchanged their digests of the call.
func (c *comparer) compareOverPlane(call *driver.Call, ticket uint64) error {
	c.comparedCall.Store(call)
	defer c.comparedCall.Store(nil)
	err := c.plane.Compare(ticket, call)
	if err == nil && call.Operation == driver.AllToAllV {
		err = c.checkSplits(call, ticket)
	}

	return err
}

// checkSplits checks that each rank of an AllToAllV sends the counts that the others expect. NCCL
// would hang otherwise. Digests omit these counts, because correct counts can differ between ranks.
func (c *comparer) checkSplits(call *driver.Call, ticket uint64) error {
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
