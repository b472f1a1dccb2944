package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer detects ranks that launch different calls, such as an AllReduce on rank 0 and a
// Broadcast on rank 1. The ranks exchange digests (hashes) of a call's arguments. In a direct call,
// symmem's own kernels compare them on the GPU. The hosts compare other calls before the launch.
type comparer struct {
	cfg     *driver.GroupConfig
	plane   control.Plane // connects the ranks outside NCCL
	history *history
	direct  *directPath // its announcements are nil if ranks cannot announce digests
	faults  *faults

	hostCall atomic.Pointer[driver.Call] // the call that the hosts are comparing, or nil
}

// announce publishes the digest of a call, so that other ranks can explain a failure.
func (c *comparer) announce(call *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, call.Digest)
	}
}

// compare returns an error if the group or a peer has failed. It also compares the call on the
// hosts, unless the call's kernels do that.
func (c *comparer) compare(call *driver.Call, ticket uint64, isDirect bool) error {
	if c.kernelsCompare(isDirect) {
		return c.checkFailure(call, ticket)
	}

	return c.compareOnHosts(call, ticket)
}

// compareCaptured compares a call before it is captured, unless its kernels do that in each replay.
func (c *comparer) compareCaptured(call *driver.Call, isDirect bool) error {
	if c.kernelsCompare(isDirect) {
		return nil
	}

	ticket := c.plane.Submit()
	c.history.recordComparison(ticket)
	return c.compareOnHosts(call, ticket)
}

func (c *comparer) kernelsCompare(isDirect bool) bool {
	return isDirect && c.direct.announcements != nil
}

// checkFailure returns an error if the group or a peer has failed. It prefers a mismatch, which may
// have made the peer fail.
func (c *comparer) checkFailure(call *driver.Call, ticket uint64) error {
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

// compareOnHosts waits until all ranks have called it, and returns an error if their calls differ.
func (c *comparer) compareOnHosts(call *driver.Call, ticket uint64) error {
	c.hostCall.Store(call)
	defer c.hostCall.Store(nil)
	err := c.plane.Compare(ticket, call)
	if err == nil && call.Operation == driver.AllToAllV {
		err = c.checkSplits(call, ticket)
	}

	return err
}

// checkSplits checks that each rank of an AllToAllV sends the counts that the others expect. NCCL
// would hang otherwise. Digests omit these counts, which can differ between ranks.
func (c *comparer) checkSplits(call *driver.Call, ticket uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	encodedSplits, err := c.plane.Exchange(ctx, driver.LaneCalls, encodeSplits(call.Splits))
	if err != nil {
		err = fmt.Errorf("%v %d of group %s: %w", call.Operation, ticket, c.cfg.Name(), err)
		return c.plane.Fail(err)
	}

	if err := compareSplits(c.cfg, ticket, encodedSplits); err != nil {
		return c.plane.Fail(err)
	}

	return nil
}
