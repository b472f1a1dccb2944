package nccl

import (
	"context"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// comparer checks that all ranks launch the same calls. A call's ticket is its number in the group.
type comparer struct {
	cfg    *driver.GroupConfig
	plane  control.Plane
	direct *directPath
	faults *faults
	// call is the call that a launch is comparing, or nil. While it is set, the launch itself
	// checks the peers.
	call atomic.Pointer[driver.Call]
}

// announce publishes the call's digest to the other ranks if the ranks share memory. This reveals a
// difference even if one rank runs the call with a direct kernel and another rank with NCCL.
//
// announce must be called before the history records the call. From then on, the watcher may find a
// difference and fail the group, and the other ranks look for the reason in the announcements.
func (c *comparer) announce(p *driver.Call, ticket uint64) {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, p.Digest)
	}
}

// compare checks that all ranks launch the same call, which this rank has announced. kernelsCompare
// reports whether the call's kernels compare calls themselves.
func (c *comparer) compare(p *driver.Call, ticket uint64, kernelsCompare bool) error {
	if kernelsCompare && c.direct.announcements != nil {
		return c.checkPeersBeforeKernels(p, ticket)
	}
	return c.compareNow(p, ticket)
}

// compareNow compares the call with the calls of the other ranks before the call reaches the GPU.
func (c *comparer) compareNow(p *driver.Call, ticket uint64) error {
	c.call.Store(p)
	defer c.call.Store(nil)
	err := c.plane.Compare(ticket, p)
	if err == nil && p.Operation == driver.AllToAllV {
		err = c.compareSplits(p, ticket)
	}
	return err
}

// compareSplits compares the sizes that ranks send with the sizes that their peers expect. If they
// differed, NCCL would wait forever. All ranks return the same error.
func (c *comparer) compareSplits(p *driver.Call, ticket uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
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

// checkPeersBeforeKernels returns an error if a peer has failed. It is called before kernels that
// compare calls themselves, because they might succeed although the peer has failed.
func (c *comparer) checkPeersBeforeKernels(p *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}
	if err := c.faults.mismatch(p, ticket); err != nil {
		return c.plane.Fail(err) // the peer may have failed for the same reason
	}
	return c.faults.failAfterPeerInCall(p, ticket)
}
