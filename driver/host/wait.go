package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// budget says how long a wait spins and yields before it sleeps.
type budget struct {
	// polls are those with a PAUSE in between, before the first yield, and morePolls those after
	// each. Polling without a PAUSE makes the line harder to get for who is about to write it.
	polls, morePolls uint32
	// abreast is how many other ranks can run while this one does. If more are missing, one of
	// them waits for a processor, and it may be this one.
	abreast int
	// yields are the turns given to others before the first sleep; brief is how many of them a
	// caller's own thread may use up before the work goes to the stream's worker.
	yields, brief int
}

const (
	// freePolls is how often a rank polls that has a processor of its own.
	freePolls = 500
	// sharedPolls is how often one polls that has not, for those that run meanwhile: what a line
	// needs to come from the other processor and some more, and less than a change of processes
	// costs. With half as many, all-reduce of 8 bytes on 4 ranks of 2 processors took a tenth more.
	sharedPolls = 40
)

// newBudget is generous where every rank has a processor of its own. Where ranks outnumber
// processors the one that is waited for may be waiting for ours, so spinning for it is pure loss:
// in a C program, 2,000 pauses instead of 20 made an all-reduce of 64 KiB on 4 ranks of 2
// processors 17 times slower.
func newBudget(d *Device, ranks, processors int) budget {
	b := budget{polls: freePolls, abreast: processors - 1, yields: 400, brief: 300}
	if ranks > processors {
		b.polls, b.morePolls = sharedPolls, sharedPolls
	}
	if d.crowded.Load() {
		b.polls, b.morePolls, b.yields, b.brief = 5, 0, 2000, 1000
	}
	return b
}

const (
	firstSleep = 100 * time.Microsecond
	longSleep  = 10 * time.Millisecond
	// glances is how many yields pass between two looks for trouble.
	glances = 64
)

// waiting describes a slow wait: every block's word must reach want.
type waiting struct {
	word func(*block) *uint64
	want uint64
	// from lists the group ranks that are waited for.
	from []int
	// doing names the wait for error messages.
	doing func() string
	// collective is the ticket of the collective that waits, or 0; exchange is set for the control
	// lane. They are what a peer needs to know to prove that the two will never meet.
	collective uint64
	operation  driver.Operation
	exchange   bool
	// begin is when the wait was shown, by the machine's monotonic clock.
	begin uint64
	// tolerant waits look neither for failed peers nor for stray ones.
	tolerant bool
	done     <-chan struct{}
	deadline uint64
}

// linger is the slow part of a wait: it yields, then sleeps, and looks for trouble now and then.
func (c *communicator) linger(ctx context.Context, w *waiting) error {
	begin := sys.Monotonic()
	w.deadline = begin + uint64(c.device.cfg.Timeout)
	w.done = ctx.Done()
	if at, ok := ctx.Deadline(); ok {
		w.deadline = begin + uint64(max(0, time.Until(at)))
	}
	c.publishWait(w, begin)
	defer c.concealWait(w)
	for turn := 0; ; turn++ {
		if len(c.missing(w)) == 0 {
			return nil
		}
		if turn < c.budget.yields {
			c.device.yield()
			if turn%glances != 0 {
				continue
			}
		} else {
			if turn == c.budget.yields && w.collective == 0 {
				wakePoller()
			}
			c.sleep(w, turn-c.budget.yields)
		}
		if err := c.trouble(ctx, w, begin); err != nil {
			return err
		}
	}
}

// wakePoller makes another thread of this process look for work, and, as it finds none, wait for
// the network. A thread that sleeps on a futex may be the one that did so before, and the runtime
// of Go notices only after 10 ms that nobody does any more: for so long peers would wait for the
// descriptors that this rank hands out. Registering 1,000 segments on 2 ranks took 5 to 8 s without
// this, and takes 0.2 s. In collectives nobody asks for any.
func wakePoller() { go func() {}() }

// comesSoon waits for the first of some blocks to post the current step, for as long as a caller's
// own thread may be kept. How many have not tells whether polling, if it is wanted, makes sense.
func (c *communicator) comesSoon(blocks []*block, poll bool) bool {
	word, polls := &blocks[0].lines[c.step&1].step, c.budget.polls
	for range c.budget.brief {
		if poll && c.absent(blocks) <= c.budget.abreast &&
			spin.UntilAtLeast64(word, c.step, 0, polls) {
			return true
		}
		c.device.yield()
		if spin.LoadAcquire64(word) >= c.step {
			return true
		}
		polls = c.budget.morePolls
	}
	return false
}

// absent counts the blocks that have not posted the current step.
func (c *communicator) absent(blocks []*block) int {
	absent := 0
	for _, b := range blocks {
		if atomic.LoadUint64(&b.lines[c.step&1].step) < c.step {
			absent++
		}
	}
	return absent
}

// publishWait shows the wait on this rank's board.
func (c *communicator) publishWait(w *waiting, begin uint64) {
	b := &c.me.board
	w.begin = begin
	switch {
	case w.collective != 0:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waits = append(c.waits, w)
		c.showLast()
	case w.exchange:
		spin.StoreRelease64(&b.since, begin)
		spin.StoreRelease64(&b.inExchange, spin.LoadAcquire64(&b.exchanges))
	}
}

// concealWait takes back what publishWait has shown of this wait, and nothing of others.
func (c *communicator) concealWait(w *waiting) {
	switch {
	case w.collective != 0:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waits = slices.DeleteFunc(c.waits, func(o *waiting) bool { return o == w })
		c.showLast()
	case w.exchange:
		spin.StoreRelease64(&c.me.board.inExchange, 0)
	}
}

// showLast shows the last of the collectives in which this rank waits: it proves the most to
// others. c.mu is held.
func (c *communicator) showLast() {
	b := &c.me.board
	if len(c.waits) == 0 {
		spin.StoreRelease64(&b.inCollective, 0)
		return
	}
	last := slices.MaxFunc(c.waits, func(a, b *waiting) int {
		return cmp.Compare(a.collective, b.collective)
	})
	spin.StoreRelease64(&b.operation, uint64(last.operation))
	spin.StoreRelease64(&b.since, last.begin)
	spin.StoreRelease64(&b.inCollective, last.collective)
}

// missing lists the group ranks whose word has not come yet.
func (c *communicator) missing(w *waiting) []int {
	var ranks []int
	for _, r := range w.from {
		if spin.LoadAcquire64(w.word(c.blocks[r])) < w.want {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// sleep waits on this rank's bell for one slice, unless the wait has ended meanwhile.
func (c *communicator) sleep(w *waiting, round int) {
	word := atomic.LoadUint32(&c.me.bell.word)
	atomic.AddInt32(&c.me.bell.sleeping, 1)
	defer atomic.AddInt32(&c.me.bell.sleeping, -1)
	if len(c.missing(w)) == 0 {
		return
	}
	slice := min(firstSleep<<min(round, 10), longSleep)
	sys.FutexWait(&c.me.bell.word, word, slice)
}

// trouble reports why the wait should end without success, or nil.
func (c *communicator) trouble(ctx context.Context, w *waiting, begin uint64) error {
	if c.fault.set.Load() && !w.tolerant {
		return c.Cause()
	}
	missing := c.missing(w)
	if len(missing) == 0 {
		// This process may have been stopped until long after the last one came.
		return nil
	}
	if lost := c.lost(missing); len(lost) > 0 && len(c.missing(w)) > 0 {
		return &driver.RankLostError{Ranks: c.world(lost), Doing: w.doing()}
	}
	if !w.tolerant {
		if err := c.peerFault(w); err != nil {
			return err
		}
	}
	if err := c.hopeless(w, missing); err != nil {
		return err
	}
	select {
	case <-w.done:
		if now := sys.Monotonic(); now < w.deadline {
			return fmt.Errorf("%s: %w", w.doing(), context.Cause(ctx))
		}
	default:
	}
	if now := sys.Monotonic(); now >= w.deadline {
		return c.timeout(w, missing, now-begin)
	}
	return nil
}

func (c *communicator) timeout(w *waiting, missing []int, waited uint64) error {
	activity := map[int]string{}
	for _, r := range missing {
		activity[c.cfg.Ranks[r]] = c.blocks[r].board.describe()
	}
	return &driver.TimeoutError{
		Doing:    w.doing(),
		Waited:   time.Duration(waited).Round(time.Millisecond),
		Missing:  c.world(missing),
		Activity: activity,
	}
}

// lost lists those of the given group ranks whose processes have ended.
func (c *communicator) lost(ranks []int) []int {
	var lost []int
	for _, r := range ranks {
		if p := c.peers[r]; p != nil && p.lost.Load() {
			lost = append(lost, r)
		}
	}
	return lost
}

// peerFault reports that a peer has seen a fault.
func (c *communicator) peerFault(w *waiting) error {
	for _, b := range c.others {
		// Looking once more after the flag was seen: what the peer had posted before it failed is
		// visible now, and may be all that was missing.
		if atomic.LoadUint32(&b.bell.failed) != 0 && len(c.missing(w)) > 0 {
			return fmt.Errorf("%s: %w", w.doing(), driver.ErrFault)
		}
	}
	return nil
}

// hopeless reports the proof that a peer will never come: it has left, or waits for us in another
// place of the program.
func (c *communicator) hopeless(w *waiting, missing []int) error {
	elsewhere := map[int]string{}
	for _, r := range missing {
		b := &c.blocks[r].board
		if c.stray(w, b) && len(c.missing(w)) > 0 {
			elsewhere[c.cfg.Ranks[r]] = b.describe()
		}
	}
	if len(elsewhere) == 0 {
		return nil
	}
	return &driver.StrayError{Doing: w.doing(), Elsewhere: elsewhere}
}

// stray tells whether the owner of a board can never reach the wait w. A rank that waits for us in
// an exchange launches nothing before we come, so if it has launched fewer collectives than the
// one we are in, neither of us can go on; and the same the other way round.
func (c *communicator) stray(w *waiting, b *board) bool {
	if spin.LoadAcquire64(&b.closed) != 0 {
		return true
	}
	if w.collective != 0 {
		return spin.LoadAcquire64(&b.inExchange) > spin.LoadAcquire64(&c.me.board.exchanges) &&
			spin.LoadAcquire64(&b.submitted) < w.collective
	}
	if w.exchange {
		return spin.LoadAcquire64(&b.inCollective) > spin.LoadAcquire64(&c.me.board.submitted)
	}
	return false
}

// describe says what a rank is doing.
func (b *board) describe() string {
	launched := spin.LoadAcquire64(&b.submitted)
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&b.since)).
		Round(time.Millisecond)
	switch n := spin.LoadAcquire64(&b.inCollective); {
	case spin.LoadAcquire64(&b.closed) != 0:
		return "has left the group"
	case n != 0:
		return fmt.Sprintf("in %v %d for %v",
			driver.Operation(spin.LoadAcquire64(&b.operation)), n, waited)
	case spin.LoadAcquire64(&b.inExchange) != 0:
		return fmt.Sprintf("in an agreement for %v, after %d collectives", waited, launched)
	default:
		return fmt.Sprintf("in no call of this group, after %d collectives", launched)
	}
}

// world translates group ranks to world ranks.
func (c *communicator) world(ranks []int) []int {
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = c.cfg.Ranks[r]
	}
	return world
}
