package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer detects ranks that launch different calls, such as an AllReduce on rank 0 and a
// Broadcast on rank 1. It compares digests (hashes) of the arguments: on the GPU if symmem's own
// kernels run the call, and otherwise between the hosts, before the launch.
type comparer struct {
	cfg    *driver.GroupConfig
	plane  control.Plane // connects the ranks outside NCCL
	direct *directPath   // runs symmem's own kernels
	faults *faults
	// comparedCall is the call that the hosts are comparing, or nil.
	comparedCall atomic.Pointer[driver.Call]
}

// announce publishes the digest of a call, before the history records it. Other ranks use the
// announcements to explain a failure.
func (c *comparer) announce(call *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, call.Digest)
	}
}

func (c *comparer) compare(call *driver.Call, ticket uint64, kernelsWillCompare bool) error {
	if kernelsWillCompare && c.direct.announcements != nil {
		return c.checkPeersBeforeKernels(call, ticket)
	}

	return c.compareOverPlane(call, ticket)
}

func (c *comparer) checkPeersBeforeKernels(call *driver.Call, ticket uint64) error {
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

// compareOverPlane waits for the other ranks.
func (c *comparer) compareOverPlane(call *driver.Call, ticket uint64) error {
	c.comparedCall.Store(call)
	defer c.comparedCall.Store(nil)
	err := c.plane.Compare(ticket, call)
	if err == nil && call.Operation == driver.AllToAllV {
		err = c.compareSplits(call, ticket)
	}

	return err
}

// compareSplits checks that each rank sends the sizes that the others expect, because NCCL hangs on
// a difference. Digests cannot cover these sizes, which legitimately differ between ranks.
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
