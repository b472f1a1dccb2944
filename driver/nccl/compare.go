package nccl

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer makes sure that all ranks launch the same calls.
type comparer struct {
	cfg     *driver.GroupConfig
	plane   control.Plane
	timeout time.Duration
	direct  *directPath
	faults  *faults
	// call holds the call that a launch is comparing, or nil. During the comparison, the launch checks
	// the peers instead of the watcher.
	call atomic.Pointer[driver.Call]
}

// announce publishes the call's digest in memory that the ranks share, if they share any. Direct
// kernels compare calls among themselves, but a rank with a different call may use NCCL, and finds
// the difference in the announcements. announce must be called before the history records the call.
// After that, the watcher may find a difference and fail the group, and the other ranks look for
// the reason in the announcements.
func (c *comparer) announce(p *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, p.Digest)
	}
}

// compare makes sure that all ranks launch the same call, which this rank has announced. If the
// call uses direct kernels and ranks can announce calls, the kernels do the comparison.
func (c *comparer) compare(p *driver.Call, ticket uint64, kernels bool) error {
	if kernels && c.direct.announcements != nil {
		return c.admitKernels(p, ticket)
	}
	return c.compareNow(p, ticket)
}

// compareNow compares the call with those of the other ranks, before it reaches the GPU.
func (c *comparer) compareNow(p *driver.Call, ticket uint64) error {
	c.call.Store(p)
	defer c.call.Store(nil)
	err := c.plane.Compare(ticket, p)
	if err == nil && p.Splits != nil {
		err = c.compareSplits(p, ticket)
	}
	return err
}

// compareSplits compares the sizes of the parts that ranks send with the sizes that their peers
// expect, because NCCL would wait forever for a part that is not sent. Each rank receives all
// splits, so all ranks get the same error.
func (c *comparer) compareSplits(p *driver.Call, ticket uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	all, err := c.plane.Exchange(ctx, driver.LaneCalls, encodeSplits(p.Splits))
	if err != nil {
		err = fmt.Errorf("%v %d of group %s: %w", p.Operation, ticket, c.cfg.Name(), err)
	} else {
		err = differingSplits(c.cfg, ticket, all)
	}
	if err != nil {
		return c.plane.Fail(err)
	}
	return nil
}

// admitKernels returns an error for a call that kernels would compare if a peer has failed. The
// kernels might still succeed, and then this rank would not notice the failure.
func (c *comparer) admitKernels(p *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}
	if err := c.faults.mismatch(p, ticket); err != nil {
		return c.plane.Fail(err) // the peer may have failed for the same reason
	}
	return c.faults.afterPeerFaultAt(p, ticket)
}
