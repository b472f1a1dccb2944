package host

import (
	"errors"
	"fmt"

	"symmem/driver"
)

func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, comm: c, partCount: 1, isMessage: call.Operation.PointToPoint()}
}

func (c *communicator) Launch(s driver.Stream, p driver.Plan) error { return c.launch(s, p, false) }

// LaunchInline is like Launch, but the next Synchronize of the stream waits for the peers.
func (c *communicator) LaunchInline(s driver.Stream, p driver.Plan) error {
	return c.launch(s, p, true)
}

func (c *communicator) launch(s driver.Stream, p driver.Plan, inline bool) error {
	ownStream, isStream := s.(*stream)
	ownPlan, isPlan := p.(*plan)
	if !isStream || !isPlan || ownPlan.comm != c {
		return errors.New("launching a collective: the stream or the plan belongs to another " +
			"backend or group")
	}
	if c.HasFailed() {
		return rejectLaunch(c, ownStream)
	}
	return ownStream.launch(ownPlan, inline)
}

// List returns a plan that runs the calls of the given plans one after another, with one ticket.
func (c *communicator) List(plans []driver.Plan) (driver.Plan, error) {
	hostPlans := make([]*plan, len(plans))
	for i, p := range plans {
		hostPlan, ok := p.(*plan)
		if !ok || hostPlan.comm != c || hostPlan.isMessage || hostPlan.otherCalls != nil {
			return nil, fmt.Errorf("a list with %v: %w", p.Prepared().Operation, driver.ErrUnsupported)
		}
		hostPlans[i] = hostPlan
	}
	list := *hostPlans[0]
	list.Call, list.otherCalls, list.callMeter = driver.ListOf(plans), hostPlans[1:], driver.Meter{}
	return &list, nil
}

// rejectLaunch returns the error of a failed group. It makes the stream fail, unless this rank has
// closed the group.
func rejectLaunch(c *communicator, s *stream) error {
	cause := c.Cause()
	if !errors.Is(cause, driver.ErrClosed) {
		s.Fail(cause)
	}
	return cause
}

// deferredCall is the work of a launched collective that did not run on the caller's thread.
type deferredCall struct {
	plan           *plan
	ticket         uint64 // number of the collective in the group, from 1
	checkCalls     bool   // whether ranks compare their calls
	isBegun        bool   // whether this rank has posted the first step
	messageBalance uint64 // result of Counts.Balance, or 0 if ranks do not compare balances
	beginTime      int64  // result of Meter.Begin, valid if isBegun is set
}

// assignTicket assigns the next ticket to a call. The results are fields of a deferredCall. They
// are not returned as a struct, so that they stay in registers. The caller must hold c.Mu.
func (c *communicator) assignTicket(p *plan) (ticket uint64, check bool, balance uint64) {
	c.callCounts[p.Path]++
	if check = c.checkCalls.Load(); check {
		balance = c.Counts.Balance()
	}
	return c.Ticket(), check, balance
}

func (c *communicator) newDeferredCall(p *plan) (*deferredCall, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Closed() {
		return nil, c.Cause()
	}
	ticket, check, balance := c.assignTicket(p)
	return &deferredCall{
		plan: p, ticket: ticket, checkCalls: check, messageBalance: balance,
	}, nil
}

// runOrDefer runs a collective on the caller's thread if all earlier collectives have completed
// and the peers arrive soon. Otherwise, it returns work to queue. It does not hold c.Mu while it
// waits, because Close and Abort must be able to end the wait.
func (c *communicator) runOrDefer(p *plan) (work, error) {
	c.Mu.Lock()
	if c.HasFailed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}
	ticket, check, balance := c.assignTicket(p)
	c.Mu.Unlock()
	if !c.turns.isTurn(ticket) {
		return &deferredCall{
			plan: p, ticket: ticket, checkCalls: check, messageBalance: balance,
		}, nil
	}
	beginTime := p.callMeter.Begin()
	c.Begin(check, balance)
	c.postFirstStep(p)
	if !c.AwaitLinesBriefly(!p.yieldProcessor) {
		return &deferredCall{
			plan: p, ticket: ticket, checkCalls: check, messageBalance: balance,
			isBegun: true, beginTime: beginTime,
		}, nil
	}
	c.mover.prefetchStage()
	err := c.completeList(p, ticket)
	if err != nil {
		err = c.failWith(err)
	}
	p.callMeter.End(beginTime)
	c.turns.endTurn(ticket)
	return nil, err
}

// failWith makes the communicator fail and returns its first fault, which may differ from err.
func (c *communicator) failWith(err error) error {
	c.Fail(err)
	return c.Cause()
}

func (d *deferredCall) run() error {
	c := d.plan.comm
	if !c.turns.isTurn(d.ticket) {
		c.turns.waitForTurn(d.ticket)
	}
	defer c.turns.endTurn(d.ticket)
	return c.runDeferred(d)
}

// skip makes the group fail, because the stream's earlier failure has left the call's input
// incomplete. It first waits until all earlier collectives have completed.
func (d *deferredCall) skip(cause error) {
	c := d.plan.comm
	c.turns.waitForTurn(d.ticket)
	defer c.turns.endTurn(d.ticket)
	c.Fail(&driver.PriorError{
		InCall: c.CallName(d.plan.Operation, d.ticket), Rank: c.cfg.Ranks[c.cfg.Rank], Cause: cause,
	})
}

func (c *communicator) runDeferred(d *deferredCall) error {
	if c.HasFailed() {
		return c.Cause()
	}
	if !d.isBegun {
		d.beginTime = d.plan.callMeter.Begin()
		c.Begin(d.checkCalls, d.messageBalance)
		c.postFirstStep(d.plan)
	}
	err := c.mover.waitForStep(&d.plan.Call, d.ticket)
	if err == nil {
		err = c.completeList(d.plan, d.ticket)
	}
	d.plan.callMeter.End(d.beginTime)
	if err != nil {
		return c.failWith(err)
	}
	return nil
}

func (c *communicator) postFirstStep(call *plan) {
	if call.routed != nil {
		call.routed.pack()
		call.routed.inner.Digest = call.Digest // recorded calls have different ones
		call = &call.routed.inner
	}
	if call.isPairwise {
		c.split.postSplits(call)
		return
	}
	if call.useWindows {
		c.Post(call.Digest, nil, 0)
		return
	}
	c.mover.stageAndPost(call, 0)
}

// completeList completes a call, whose first step all ranks must have posted, and its list.
func (c *communicator) completeList(call *plan, ticket uint64) error {
	err := c.completeOne(call, ticket)
	for _, next := range call.otherCalls {
		if err == nil {
			c.postFirstStep(next)
			err = c.mover.waitForStep(&next.Call, ticket)
		}
		if err == nil {
			err = c.completeOne(next, ticket)
		}
	}
	return err
}

func (c *communicator) completeOne(call *plan, ticket uint64) error {
	if c.MayDiffer(call.Digest) {
		if err := c.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}
	if c.PeerFailedBefore() {
		return c.PeerFailedBeforeError(&call.Call, ticket)
	}
	err := c.moveData(call, ticket)
	switch {
	case err != nil:
	case call.Norm != nil:
		c.normalizer.normalize(call)
	case call.routed != nil:
		call.routed.finish()
	}
	return err
}

func (c *communicator) moveData(call *plan, ticket uint64) error {
	if call.isPairwise {
		return c.split.completeExchange(call, ticket)
	}
	if call.routed != nil {
		call = &call.routed.inner
	}
	if !call.useWindows {
		return c.mover.finishStaged(call, ticket)
	}
	c.mover.move(call)
	c.Post(call.Digest, nil, 0)
	return c.mover.waitForStep(&call.Call, ticket)
}
