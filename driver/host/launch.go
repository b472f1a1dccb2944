package host

import (
	"errors"
	"fmt"

	"symmem/driver"
)

// Offer returns a plan that Take completes later.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, comm: c, partCount: 1, isMessage: call.Operation.PointToPoint()}
}

func (c *communicator) Launch(s driver.Stream, p driver.Plan) error {
	const callerWaits = false
	return c.launch(s, p, callerWaits)
}

// LaunchInline is like Launch, but no worker goroutine waits for the peers. The next Synchronize of
// the stream waits for them on its caller's thread.
func (c *communicator) LaunchInline(s driver.Stream, p driver.Plan) error {
	const callerWaits = true
	return c.launch(s, p, callerWaits)
}

func (c *communicator) launch(s driver.Stream, p driver.Plan, callerWaits bool) error {
	ownStream, isStream := s.(*stream)
	ownPlan, isPlan := p.(*plan)
	if !isStream || !isPlan || ownPlan.comm != c {
		return errors.New("launching a collective: the stream or the plan belongs to another " +
			"backend or group")
	}

	if c.HasFailed() {
		return c.rejectLaunch(ownStream)
	}

	return ownStream.launch(ownPlan, callerWaits)
}

// List returns a plan that runs the calls of the given plans one after another, as one collective.
func (c *communicator) List(plans []driver.Plan) (driver.Plan, error) {
	hostPlans := make([]*plan, len(plans))
	for i, p := range plans {
		hostPlan, ok := p.(*plan)
		if !ok || hostPlan.comm != c || hostPlan.isMessage || hostPlan.otherCalls != nil {
			return nil, fmt.Errorf("a list with %v: %w", p.Prepared().Operation, driver.ErrUnsupported)
		}

		hostPlans[i] = hostPlan
	}

	list := *hostPlans[0] // the list is the first plan, with the others attached
	list.Call = driver.ListOf(plans)
	list.otherCalls = hostPlans[1:]
	list.callMeter = driver.Meter{} // the caller can set another one for the list
	return &list, nil
}

// rejectLaunch makes the stream fail with the cause of the group's failure, and returns the cause.
// It spares the stream if this rank has closed the group: the launch is only the caller's mistake.
func (c *communicator) rejectLaunch(s *stream) error {
	cause := c.Cause()
	if !errors.Is(cause, driver.ErrClosed) {
		s.Fail(cause)
	}

	return cause
}

// deferredCall is a launched collective that did not complete on the caller's thread. A stream runs
// it later as a part of its work.
type deferredCall struct {
	plan       *plan
	ticket     uint64 // number of the collective in the group, from 1
	checkCalls bool   // whether ranks compare their calls
	// messageBalance summarizes this rank's Sends and Recvs before the call (see Counts.Balance).
	// Ranks compare it, too. It is 0 if checkCalls is not set.
	messageBalance uint64
	isBegun        bool  // whether this rank has posted the first step
	beginTime      int64 // result of Meter.Begin; valid if isBegun is set
}

// assignTicket assigns the next ticket to a call. check and balance are the checkCalls and
// messageBalance of a deferredCall. There is no result struct, so that the results stay in
// registers. The caller must hold c.Mu.
func (c *communicator) assignTicket(p *plan) (ticket uint64, check bool, balance uint64) {
	c.callCounts[p.Path]++
	check = c.checkCalls.Load()
	if check {
		balance = c.Counts.Balance()
	}

	return c.Ticket(), check, balance
}

// newDeferredCall assigns a ticket to a call and returns the work that runs it.
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
// and the peers arrive soon. The result is nil in this case. Otherwise, it returns work that the
// caller must queue. It does not hold c.Mu while it waits, because Close and Abort must be able to
// end the wait.
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
	poll := !p.yieldProcessor
	if !c.AwaitLinesBriefly(poll) {
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

// failWith makes the communicator fail. It returns the first fault, which can be older than err.
func (c *communicator) failWith(err error) error {
	c.Fail(err) // without effect after an earlier fault
	return c.Cause()
}

func (d *deferredCall) run() error {
	c := d.plan.comm
	if !c.turns.isTurn(d.ticket) { // avoids the cost of a wait
		c.turns.waitForTurn(d.ticket)
	}

	defer c.turns.endTurn(d.ticket)
	return d.runInTurn()
}

// skip makes the group fail: earlier work of the stream has failed, so the call's input is
// incomplete. It first waits until all earlier collectives have completed.
func (d *deferredCall) skip(cause error) {
	c := d.plan.comm
	c.turns.waitForTurn(d.ticket)
	defer c.turns.endTurn(d.ticket)
	c.Fail(&driver.PriorError{
		InCall: c.CallName(d.plan.Operation, d.ticket), Rank: c.cfg.Ranks[c.cfg.Rank], Cause: cause,
	})
}

// runInTurn runs the call. All earlier collectives must have completed.
func (d *deferredCall) runInTurn() error {
	c := d.plan.comm
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

// postFirstStep makes this rank's input available to its peers and posts the first step of a call.
// In a step, every rank posts a line in shared memory and waits for the lines of all others.
func (c *communicator) postFirstStep(call *plan) {
	if call.routed != nil {
		call.routed.pack()
		// A call that was recorded for a graph has another digest than at its preparation.
		call.routed.inner.Digest = call.Digest
		call = &call.routed.inner
	}

	switch {
	case call.isPairwise:
		c.split.postSplits(call)
	case call.useWindows:
		c.Post(call.Digest, nil, 0) // peers read the input in place, so there is no payload
	default:
		const firstElement = 0
		c.mover.stageAndPost(call, firstElement)
	}
}

// completeList completes a call and the other calls of its list. Call it when all ranks have posted
// the first step of call.
func (c *communicator) completeList(call *plan, ticket uint64) error {
	if err := c.completeOne(call, ticket); err != nil {
		return err
	}

	for _, next := range call.otherCalls {
		c.postFirstStep(next)
		if err := c.mover.waitForStep(&next.Call, ticket); err != nil {
			return err
		}

		if err := c.completeOne(next, ticket); err != nil {
			return err
		}
	}

	return nil
}

// completeOne completes a call without its list. Call it when all ranks have posted the first step.
func (c *communicator) completeOne(call *plan, ticket uint64) error {
	if c.MayDiffer(call.Digest) {
		if err := c.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}

	if c.PeerFailedBefore() { // before the collective began
		return c.PeerFailedBeforeError(&call.Call, ticket)
	}

	if err := c.moveData(call, ticket); err != nil {
		return err
	}

	switch {
	case call.Norm != nil:
		c.normalizer.normalize(call)
	case call.routed != nil:
		call.routed.finish()
	}

	return nil
}

// moveData reads the peers' input and reduces or copies it to the receive buffer.
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
	// After this step, no rank accesses another rank's window any more.
	c.Post(call.Digest, nil, 0)
	return c.mover.waitForStep(&call.Call, ticket)
}
