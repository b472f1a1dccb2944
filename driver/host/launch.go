package host

import (
	"errors"
	"fmt"

	"symmem/driver"
)

// Offer offers the plain path and the window path, but not the direct path.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, comm: c, parts: 1, pointToPoint: call.Operation.PointToPoint()}
}

// Launch queues a prepared collective on a stream.
func (c *communicator) Launch(s driver.Stream, p driver.Plan) error { return c.launch(s, p, false) }

// LaunchInline is like Launch, but leaves waiting for peers to the next Synchronize of the stream.
func (c *communicator) LaunchInline(s driver.Stream, p driver.Plan) error {
	return c.launch(s, p, true)
}

func (c *communicator) launch(s driver.Stream, p driver.Plan, inline bool) error {
	st, ok := s.(*stream)
	prepared, isPlan := p.(*plan)
	if !ok || !isPlan || prepared.comm != c {
		return errors.New("launching a collective: the stream or the plan belongs to another " +
			"backend or group")
	}
	if !c.HasFailed() {
		return st.launch(prepared, inline)
	}
	return refuse(c, st)
}

// List returns a plan that runs several plans with one ticket, its position in the group's order.
func (c *communicator) List(plans []driver.Plan) (driver.Plan, error) {
	members := make([]*plan, len(plans))
	for i, p := range plans {
		member, ok := p.(*plan)
		if !ok || member.comm != c || member.pointToPoint || member.others != nil {
			return nil, fmt.Errorf("a list with %v: %w", p.Prepared().Operation, driver.ErrUnsupported)
		}
		members[i] = member
	}
	list := *members[0]
	list.Call, list.others, list.meter = driver.ListOf(plans), members[1:], driver.Meter{}
	return &list, nil
}

// refuse returns the error of a launch after the communicator has failed, and makes the stream
// fail. If this rank has closed the group, however, the stream stays usable.
func refuse(c *communicator, s *stream) error {
	cause := c.Cause()
	if !errors.Is(cause, driver.ErrClosed) {
		s.Fail(cause)
	}
	return cause
}

type pendingCall struct {
	plan    *plan
	ticket  uint64
	check   bool   // whether the group compared calls at the time of issue
	posted  bool   // whether the first step was posted
	balance uint64 // weights of this rank's Sends minus Recvs; 0 if not compared
	begin   int64  // result of Meter.Begin if posted is set
}

// issue returns a collective's ticket, its position in the group's order, and other fields of its
// pendingCall. Separate results stay in registers. The caller must hold c.Mu.
func (c *communicator) issue(p *plan) (ticket uint64, check bool, balance uint64) {
	c.launched[p.Path]++
	if check = c.check.Load(); check {
		balance = c.Counts.Balance()
	}
	return c.Ticket(), check, balance
}

func (c *communicator) issueQueued(p *plan) (*pendingCall, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Closed() {
		return nil, c.Cause()
	}
	ticket, check, balance := c.issue(p)
	return &pendingCall{plan: p, ticket: ticket, check: check, balance: balance}, nil
}

// attempt runs a collective on the caller's thread if it is the collective's turn and the peers
// arrive soon. Otherwise, attempt returns work to queue. It does not hold c.Mu while it waits,
// because Close and Abort must be able to end the wait.
func (c *communicator) attempt(p *plan) (work, error) {
	c.Mu.Lock()
	if c.HasFailed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}
	ticket, check, balance := c.issue(p)
	c.Mu.Unlock()
	if !c.turns.reached(ticket) {
		return &pendingCall{plan: p, ticket: ticket, check: check, balance: balance}, nil
	}
	begin := p.meter.Begin()
	c.Begin(check, balance)
	c.begin(p)
	if !c.ArriveBriefly(!p.yields) {
		pending := pendingCall{
			plan: p, ticket: ticket, check: check, balance: balance, posted: true, begin: begin,
		}
		return &pending, nil
	}
	c.mover.prefetchStage()
	err := c.finish(p, ticket)
	if err != nil {
		err = c.failWith(err)
	}
	p.meter.End(begin)
	c.turns.pass(ticket)
	return nil, err
}

// failWith makes the communicator fail and returns its first fault, which may differ from err.
func (c *communicator) failWith(err error) error {
	c.Fail(err)
	return c.Cause()
}

func (p *pendingCall) run() error {
	c := p.plan.comm
	if !c.turns.reached(p.ticket) {
		c.turns.await(p.ticket)
	}
	defer c.turns.pass(p.ticket)
	return c.complete(p)
}

// skip makes the group fail, because this rank has not computed its input. It waits for the
// collective's turn, so that earlier collectives are not affected.
func (p *pendingCall) skip(cause error) {
	c := p.plan.comm
	c.turns.await(p.ticket)
	defer c.turns.pass(p.ticket)
	c.Fail(&driver.PriorError{
		InCall: c.CallName(p.plan.Operation, p.ticket), Rank: c.cfg.Ranks[c.cfg.Rank], Cause: cause,
	})
}

// complete runs a collective whose turn it is.
func (c *communicator) complete(p *pendingCall) error {
	if c.HasFailed() {
		return c.Cause()
	}
	if !p.posted {
		p.begin = p.plan.meter.Begin()
		c.Begin(p.check, p.balance)
		c.begin(p.plan)
	}
	err := c.mover.arrive(&p.plan.Call, p.ticket)
	if err == nil {
		err = c.finish(p.plan, p.ticket)
	}
	p.plan.meter.End(p.begin)
	if err != nil {
		return c.failWith(err)
	}
	return nil
}

func (c *communicator) begin(call *plan) {
	if call.pairwise {
		c.split.begin(call)
		return
	}
	if call.usesWindows {
		c.Post(call.Digest, nil, 0)
		return
	}
	c.mover.contribute(call, 0)
}

// finish completes a collective after the first lines of all ranks, which carry the digests, have
// arrived. Then it runs the other calls of a list.
func (c *communicator) finish(call *plan, ticket uint64) error {
	err := c.finishOne(call, ticket)
	for _, next := range call.others {
		if err == nil {
			c.begin(next)
			err = c.mover.arrive(&next.Call, ticket)
		}
		if err == nil {
			err = c.finishOne(next, ticket)
		}
	}
	return err
}

func (c *communicator) finishOne(call *plan, ticket uint64) error {
	if c.MayDiffer(call.Digest) {
		if err := c.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}
	if c.PeerFailedBefore() {
		return c.PeerFailedBeforeError(&call.Call, ticket)
	}
	err := c.moveAll(call, ticket)
	if err == nil && call.Norm != nil {
		c.normalizer.finish(call)
	}
	return err
}

func (c *communicator) moveAll(call *plan, ticket uint64) error {
	if call.pairwise {
		return c.split.finish(call, ticket)
	}
	if !call.usesWindows {
		return c.mover.finishStaged(call, ticket)
	}
	c.mover.move(call)
	c.Post(call.Digest, nil, 0)
	return c.mover.arrive(&call.Call, ticket)
}
