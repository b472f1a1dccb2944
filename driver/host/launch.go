package host

import (
	"errors"
	"time"

	"symmem/driver"
	"symmem/internal/spin"
)

// Offer resolves nothing: the window path takes what the plain one does, and nothing goes direct.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, c: c, parts: 1, pair: call.Operation.PointToPoint()}
}

// Launch queues a prepared collective on a stream.
func (c *communicator) Launch(s driver.Stream, p driver.Plan) error {
	st, ok := s.(*stream)
	prepared, fits := p.(*plan)
	if !ok || !fits || prepared.c != c {
		return errors.New("launching a collective: the stream or the plan is of another " +
			"backend or group")
	}
	if !c.HasFailed() {
		return st.launch(prepared)
	}
	return refuse(c, st)
}

// refuse is a launch after the communicator has failed: the stream fails, too, since what is queued
// behind may use the result. A group that this rank has closed is a mistake of the caller, and
// nothing happens.
func refuse(c *communicator, s *stream) error {
	cause := c.Cause()
	if !errors.Is(cause, driver.ErrClosed) {
		s.Fail(cause)
	}
	return cause
}

// issued is a collective that has its ticket and waits for its turn. check reports whether calls
// are compared, as it was when the ticket was handed out; posted, that the first step was made
// already, on the caller's thread.
type issued struct {
	plan          *plan
	ticket        uint64
	check, posted bool
	// balance is this rank's balance of messages at the call, or 0 if balances are not compared.
	balance uint64
}

// issue gives a collective its ticket, and returns what an issued keeps of it: as results, which
// stay in registers. c.Mu is held.
func (c *communicator) issue(p *plan) (ticket uint64, check bool, balance uint64) {
	c.launched[p.Path]++
	if check = c.check.Load(); check {
		balance = c.Counts.Balance()
	}
	return c.Ticket(), check, balance
}

// issueQueued is issue for a collective that is to be queued.
func (c *communicator) issueQueued(p *plan) (*issued, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.Closed() {
		return nil, c.Cause()
	}
	ticket, check, balance := c.issue(p)
	return &issued{plan: p, ticket: ticket, check: check, balance: balance}, nil
}

// attempt runs a collective on the caller's thread if it is its turn and the peers come soon;
// otherwise it returns what has to be queued. c.mu is not held meanwhile, so that Close and Abort
// can end the wait.
func (c *communicator) attempt(p *plan) (work, error) {
	c.Mu.Lock()
	if c.HasFailed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}
	ticket, check, balance := c.issue(p)
	c.Mu.Unlock()
	if c.completed.Load() != ticket-1 {
		return &issued{plan: p, ticket: ticket, check: check, balance: balance}, nil
	}
	c.Begin(check, balance)
	c.begin(p)
	if !c.ArriveBriefly(!p.yields) {
		i := issued{plan: p, ticket: ticket, check: check, balance: balance, posted: true}
		return &i, nil
	}
	c.prefetchStage()
	err := c.finish(p, ticket)
	if err != nil {
		err = c.failed(err)
	}
	c.pass(ticket)
	return nil, err
}

// failed is Fail for the error of a call. It returns the communicator's first fault, which may have
// come from another call.
func (c *communicator) failed(err error) error {
	c.Fail(err)
	return c.Cause()
}

// pass ends the turn of a ticket. It is a plain store, since a locked instruction would wait for
// the post before it to reach the other ranks; turnSlice makes up for a waiter that it misses.
func (c *communicator) pass(ticket uint64) {
	spin.Publish64(&c.completed, ticket)
	if c.waiters.Load() != 0 {
		c.wakeWaiters()
	}
}

// wakeWaiters has those that wait for a turn look again.
func (c *communicator) wakeWaiters() {
	c.Mu.Lock()
	close(c.passed)
	c.passed = make(chan struct{})
	c.Mu.Unlock()
}

// turnSlice bounds how late a waiter notices a turn whose end has missed it.
const turnSlice = time.Millisecond

// awaitTurn waits until all tickets before the given one have had their turn: this rank's own work.
func (c *communicator) awaitTurn(ticket uint64) { c.awaitTurnUntil(ticket, nil) }

// awaitTurnUntil is awaitTurn with an end, and reports whether the turn came.
func (c *communicator) awaitTurnUntil(ticket uint64, end <-chan struct{}) bool {
	c.waiters.Add(1)
	defer c.waiters.Add(-1)
	timer := time.NewTicker(turnSlice)
	defer timer.Stop()
	for {
		c.Mu.Lock()
		passed := c.passed
		c.Mu.Unlock()
		if c.completed.Load() == ticket-1 {
			return true
		}
		select {
		case <-passed:
		case <-timer.C:
		case <-end:
			return false
		}
	}
}

// run waits for the collective's turn and completes it.
func (i *issued) run() error {
	c := i.plan.c
	if c.completed.Load() != i.ticket-1 {
		c.awaitTurn(i.ticket)
	}
	defer c.pass(i.ticket)
	return c.complete(i)
}

// skip fails the group when the collective's turn comes: the other ranks would get what was never
// computed. Collectives before it are not touched.
func (i *issued) skip(cause error) {
	c := i.plan.c
	c.awaitTurn(i.ticket)
	defer c.pass(i.ticket)
	c.Fail(&driver.PriorError{
		Doing: c.CallName(i.plan.Operation, i.ticket), Rank: c.cfg.Ranks[c.cfg.Rank], Cause: cause,
	})
}

// complete runs a collective whose turn has come. c.mu is not held: no other call has the turn.
func (c *communicator) complete(i *issued) error {
	if c.HasFailed() {
		return c.Cause()
	}
	if !i.posted {
		c.Begin(i.check, i.balance)
		c.begin(i.plan)
	}
	err := c.arrive(&i.plan.Call, i.ticket)
	if err == nil {
		err = c.finish(i.plan, i.ticket)
	}
	if err != nil {
		return c.failed(err)
	}
	return nil
}

// begin posts the first step of a collective, whose turn it is.
func (c *communicator) begin(call *plan) {
	if call.Splits != nil {
		c.split.begin(call)
		return
	}
	if call.windowed {
		c.Post(call.Digest, nil, 0)
		return
	}
	c.contribute(call, 0)
}

// finish completes a collective after everybody's first line has arrived.
func (c *communicator) finish(call *plan, ticket uint64) error {
	if c.MayDiffer(call.Digest) {
		if err := c.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}
	if c.PeerFailedBefore() {
		return c.PeerFailedBeforeError(&call.Call, ticket)
	}
	if call.Splits != nil {
		return c.split.finish(call, ticket)
	}
	if !call.windowed {
		return c.finishStaged(call, ticket)
	}
	c.move(call)
	c.Post(call.Digest, nil, 0)
	return c.arrive(&call.Call, ticket)
}
