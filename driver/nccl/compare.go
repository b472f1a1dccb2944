package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// All ranks of a group must launch the same calls in the same order. If the program wants it, a
// comparer checks this for each call. For example, rank 0 launches an AllReduce as the group's
// collective 7, but rank 1 launches a Broadcast. The number 7 is the ticket of the call. Each rank
// has a digest of its call, a hash of the arguments, so the ranks only need to compare digests.
// There are two ways:
//
//   - symmem's own kernels compare the digests on the GPU, while they run the call.
//   - The plane, a connection between the ranks outside NCCL, compares them before the call.

// comparer compares calls across ranks.
type comparer struct {
	cfg    *driver.GroupConfig
	plane  control.Plane
	direct *directPath // for symmem's own kernels
	faults *faults
	// comparedCall is the call that the plane is comparing, or nil.
	comparedCall atomic.Pointer[driver.Call]
}

// announce publishes the call's digest. It must be called before the history records the call,
// because other ranks look for the reason of a failure in the announcements.
func (c *comparer) announce(call *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, call.Digest)
	}
}

// compare checks that all ranks launch the same call, which this rank has announced. If kernels
// will do this, it only looks for ranks that have failed.
func (c *comparer) compare(call *driver.Call, ticket uint64, kernelsWillCompare bool) error {
	if kernelsWillCompare && c.direct.announcements != nil {
		return c.checkPeersBeforeKernels(call, ticket)
	}

	return c.compareOverPlane(call, ticket)
}

// checkPeersBeforeKernels returns an error if a peer (another rank) has failed, although the
// kernels might succeed.
func (c *comparer) checkPeersBeforeKernels(call *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}

	if err := c.faults.findMismatch(call, ticket); err != nil {
		return c.plane.Fail(err)
	}

	return c.faults.failAfterPeerInCall(call, ticket)
}

// compareOverPlane compares the call over the plane. It waits for the other ranks.
func (c *comparer) compareOverPlane(call *driver.Call, ticket uint64) error {
	c.comparedCall.Store(call)
	defer c.comparedCall.Store(nil)
	err := c.plane.Compare(ticket, call)
	if err == nil && call.Operation == driver.AllToAllV {
		err = c.compareSplits(call, ticket)
	}

	return err
}

// compareSplits checks that each rank sends the sizes that the other ranks expect. Otherwise, NCCL
// would hang. The digests do not contain these sizes, because they differ between ranks.
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
