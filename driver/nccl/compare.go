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
	// call is the call that a launch is comparing, or nil. The launch checks the peers itself.
	call atomic.Pointer[driver.Call]
}

// announce publishes the call for ranks that compare it on another path: kernels compare calls
// among themselves, but a rank with a different call may use NCCL. It must be called before the
// history records the call, because from then on the watcher may find a difference and fail the
// group, and the other ranks look for the reason among the announcements. Ranks without shared
// memory cannot announce calls.
func (c *comparer) announce(p *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, p.Digest)
	}
}

// compare makes sure that all ranks launch the same call, which has been announced. If the call has
// kernels and ranks can announce calls, it leaves the comparison to the kernels.
func (c *comparer) compare(p *driver.Call, ticket uint64, kernels bool) error {
	if kernels && c.direct.announcements != nil {
		return c.admitKernels(p, ticket)
	}
	return c.compareNow(p, ticket)
}

// compareNow compares the call before it reaches the GPU.
func (c *comparer) compareNow(p *driver.Call, ticket uint64) error {
	c.call.Store(p)
	defer c.call.Store(nil)
	err := c.plane.Compare(ticket, p)
	if err == nil && p.Splits != nil {
		err = c.compareSplits(p, ticket)
	}
	return err
}

// compareSplits compares the parts that ranks send with those that their peers expect: NCCL would
// wait forever for a part that is not sent. Each rank receives all splits, so all ranks get the
// same error.
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

// admitKernels refuses a call that kernels would compare if a peer has failed. The kernels might
// still succeed, and then this rank would not notice that the group has failed.
func (c *comparer) admitKernels(p *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}
	if err := c.faults.differing(p, ticket); err != nil {
		return c.plane.Fail(err) // the peer may have failed for the same reason
	}
	return c.faults.afterPeerFaultAt(p, ticket)
}
