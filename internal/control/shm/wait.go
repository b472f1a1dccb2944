package shm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/ranked"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// budget says how long a wait spins and yields before it sleeps.
type budget struct {
	// polls are those with a PAUSE in between, before the first yield, and morePolls those after
	// each. Polling without a PAUSE makes the line harder to get for who is about to write it.
	polls, morePolls uint32
	// parallel is how many other ranks can run while this one does. If more are missing, one of
	// them waits for a processor, and it may be this one.
	parallel int
	// yields are the turns given to others before the first sleep; brief is how many of them a
	// caller's own thread may use up, in briefTime at most, before the work goes to the stream's
	// worker.
	yields, briefYields int
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
func newBudget(m *Machine, ranks, processors int) budget {
	b := budget{polls: freePolls, parallel: processors - 1, yields: 400, briefYields: 300}
	if ranks > processors {
		b.polls, b.morePolls = sharedPolls, sharedPolls
	}
	if m.sharesProcess.Load() {
		b.polls, b.morePolls, b.yields, b.briefYields = 5, 0, 2000, 1000
	}
	return b
}

const (
	firstSleep = 100 * time.Microsecond
	longSleep  = 10 * time.Millisecond
	// yieldsPerCheck is how many yields pass between two checks of the peers. Where each yield
	// costs a slice of the processor that is long, so they are checked after fewer, checkInterval
	// apart.
	yieldsPerCheck, fewYieldsPerCheck = 64, 8
	checkInterval                     = 5 * uint64(time.Millisecond)
	// briefTime is how long a caller's own thread waits, without a check of the peers. It is longer
	// only on a machine with other work, where each yield may cost a slice of the processor.
	briefTime = 20 * uint64(time.Millisecond)
)

// waiting describes a slow wait: every block's word must reach want, or that which at gives for its
// rank, or, if it is set, ready must return true.
type waiting struct {
	word  func(*block) *uint64
	at    func(rank int) *uint64
	want  uint64
	ready func() bool
	// from lists the group ranks that are waited for.
	from []int
	// doing names the wait for error messages.
	doing func() string
	// collective is the ticket of the collective that waits, or 0; exchange is set for the control
	// lane. By these a peer finds out that the two can never meet.
	collective uint64
	operation  driver.Operation
	exchange   bool
	// ordered reports whether this rank launches no collective in the wait.
	ordered bool
	// begin is when the wait was published, by the machine's monotonic clock.
	begin uint64
	// timeout is how long it may last.
	timeout time.Duration
	// ignoreFaults is set for waits that go on after faults. work is set where a plane waits for
	// work that it has launched.
	ignoreFaults, work bool
	// why, if it is set, says why what is waited for will not come, or nil.
	why func() error
	// states is what rankStates fills.
	states []control.RankState
}

// waitSlowly is the slow part of a wait: it yields, then sleeps, and calls checkWait at intervals.
func (g *Group) waitSlowly(ctx context.Context, w *waiting) error {
	ranked.Waiting()
	begin := sys.Monotonic()
	w.timeout = g.machine.cfg.Timeout
	if at, ok := ctx.Deadline(); ok {
		w.timeout = max(0, time.Until(at))
	}
	g.publishWait(w, begin)
	defer g.unpublishWait(w)
	looked := begin
	for turn := 0; ; turn++ {
		if len(g.missing(w)) == 0 {
			return nil
		}
		if turn < g.budget.yields {
			g.machine.yield()
			if turn%yieldsPerCheck != 0 &&
				(turn%fewYieldsPerCheck != 0 || sys.Monotonic()-looked < checkInterval) {
				continue
			}
			looked = sys.Monotonic()
		} else {
			if turn == g.budget.yields && w.collective == 0 {
				wakePoller()
			}
			g.sleep(w, turn-g.budget.yields)
			if err := g.machine.interrupted(); err != nil {
				return fmt.Errorf("%s: %w", w.doing(), err)
			}
		}
		if err := g.checkWait(ctx, w); err != nil {
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

// publishWait writes the wait into this rank's status, where the other ranks can see it.
func (g *Group) publishWait(w *waiting, begin uint64) {
	b := &g.me.status
	w.begin = begin
	switch {
	case w.collective != 0:
		g.Mu.Lock()
		defer g.Mu.Unlock()
		g.waits = append(g.waits, w)
		g.publishLatest()
	case w.exchange:
		spin.StoreRelease64(&b.since, begin)
		spin.StoreRelease64(&b.inExchange, spin.LoadAcquire64(&b.exchanges))
	}
}

// unpublishWait removes this wait from the status. Other waits of this rank stay there.
func (g *Group) unpublishWait(w *waiting) {
	switch {
	case w.collective != 0:
		g.Mu.Lock()
		defer g.Mu.Unlock()
		g.waits = slices.DeleteFunc(g.waits, func(o *waiting) bool { return o == w })
		g.publishLatest()
	case w.exchange:
		spin.StoreRelease64(&g.me.status.inExchange, 0)
	}
}

// publishLatest publishes, of the collectives in which this rank waits, the one with the greatest
// ticket: it says most about which ranks can still meet. g.Mu is held.
func (g *Group) publishLatest() {
	b := &g.me.status
	if len(g.waits) == 0 {
		spin.StoreRelease64(&b.inCollective, 0)
		return
	}
	last := slices.MaxFunc(g.waits, func(a, b *waiting) int {
		return cmp.Compare(a.collective, b.collective)
	})
	spin.StoreRelease64(&b.operation, uint64(last.operation))
	spin.StoreRelease64(&b.since, last.begin)
	spin.StoreRelease64(&b.inCollective, last.collective)
}

// missing lists the group ranks whose word has not come yet.
func (g *Group) missing(w *waiting) []int {
	if w.ready != nil {
		if w.ready() {
			return nil
		}
		return w.from
	}
	var ranks []int
	for _, r := range w.from {
		var word *uint64
		if w.at != nil {
			word = w.at(r)
		} else {
			word = w.word(g.blocks[r])
		}
		if spin.LoadAcquire64(word) < w.want {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// sleep waits on this rank's futex for one slice, unless the wait has ended meanwhile.
func (g *Group) sleep(w *waiting, round int) {
	word := atomic.LoadUint32(&g.me.wakeup.word)
	atomic.AddInt32(&g.me.wakeup.sleeping, 1)
	defer atomic.AddInt32(&g.me.wakeup.sleeping, -1)
	if len(g.missing(w)) == 0 {
		return
	}
	slice := min(firstSleep<<min(round, 10), longSleep)
	sys.FutexWait(&g.me.wakeup.word, word, slice)
}

// checkWait returns why the wait must end without success, or nil. It warns of ranks that are late.
func (g *Group) checkWait(ctx context.Context, w *waiting) error {
	if w.why != nil {
		if err := w.why(); err != nil {
			return err
		}
	}
	states := g.rankStates(w)
	q := g.waitStatus(w)
	// This process may have been stopped until long after the last one came: then nobody is
	// missing.
	q.DeadlinePassed = errors.Is(ctx.Err(), context.DeadlineExceeded)
	v := control.Judge(&q, states)
	if v.Left && q.Waited < control.Grace && ctx.Err() == nil {
		return nil
	}
	if v.Err != nil {
		return v.Err
	}
	if errors.Is(ctx.Err(), context.Canceled) && len(g.missing(w)) > 0 {
		return control.Interrupted(&q, states, context.Cause(ctx))
	}
	g.warn(v.Warning)
	return nil
}

// waitStatus describes a wait at this moment, for control.Judge.
func (g *Group) waitStatus(w *waiting) control.WaitStatus {
	now := sys.Monotonic()
	q := control.WaitStatus{
		Group: g.cfg, Doing: w.doing, Collective: w.collective, Exchange: w.exchange || w.ordered,
		Work: w.work, IgnoreFaults: w.ignoreFaults, FailedFor: -1,
		Waited: time.Duration(now - w.begin), Timeout: w.timeout,
		Late: g.machine.cfg.Late, Warned: -1,
	}
	if g.fault.set.Load() {
		q.Cause = g.Cause()
	}
	if at := g.warned.Load(); at != 0 {
		q.Warned = time.Duration(now - min(at, now))
	}
	return q
}

// warn tells of ranks that are late, unless another wait of this rank has just done so.
func (g *Group) warn(late *driver.LateWarning) {
	if late == nil {
		return
	}
	now, at := sys.Monotonic(), g.warned.Load()
	if at != 0 && now-min(at, now) < uint64(g.machine.cfg.Late.After) {
		return
	}
	if g.warned.CompareAndSwap(at, now) {
		g.machine.cfg.Late.Warn(*late)
	}
}

// rankStates returns what is known of every rank at this moment. It reads in the order that
// control.RankState asks for. The result belongs to w and is valid until the next call.
func (g *Group) rankStates(w *waiting) []control.RankState {
	if w.states == nil {
		w.states = make([]control.RankState, len(g.blocks))
	}
	for r, p := range g.peers {
		w.states[r].Lost = p != nil && p.lost.Load()
	}
	for r, b := range g.blocks {
		w.states[r].Failed = control.Reason(atomic.LoadUint32(&b.wakeup.failed))
		w.states[r].Left = spin.LoadAcquire64(&b.status.closed) != 0
	}
	for r, b := range g.blocks {
		if r != g.cfg.Rank {
			b.status.read(&w.states[r])
			w.states[r].Message = cmp.Or(b.status.describeMessage(g.cfg.Ranks), b.describeValue())
		}
	}
	g.me.status.read(&w.states[g.cfg.Rank])
	for r := range w.states {
		w.states[r].Missing = false
	}
	for _, r := range g.missing(w) {
		w.states[r].Missing = true
	}
	return w.states
}

// read copies the status of a rank into its state. What proves that it waits for this rank is read
// before what could refute that.
func (b *status) read(s *control.RankState) {
	s.InExchange = spin.LoadAcquire64(&b.inExchange)
	s.InCollective = spin.LoadAcquire64(&b.inCollective)
	s.Operation = driver.Operation(spin.LoadAcquire64(&b.operation))
	now, since := sys.Monotonic(), spin.LoadAcquire64(&b.since)
	s.Waited = time.Duration(now - min(since, now))
	s.Exchanges = spin.LoadAcquire64(&b.exchanges)
	s.Submitted = spin.LoadAcquire64(&b.submitted)
}

// peerFault names the peers that have failed; it is called when one has.
func (g *Group) peerFault(doing func() string) error {
	return control.SomePeerFault(g.cfg, g.rankStates(&waiting{}), doing)
}

var _ driver.EndObserver = (*Group)(nil)

// EndedRanks lists the world ranks whose processes have ended before they left the group.
func (g *Group) EndedRanks() []int {
	if g.BeginUse() != nil {
		return nil
	}
	defer g.EndUse()
	return g.cfg.World(g.lostPeers())
}

// lost lists those of the given group ranks whose processes have ended.
func (g *Group) lost(ranks []int) []int {
	var lost []int
	for _, r := range ranks {
		if p := g.peers[r]; p != nil && p.lost.Load() {
			lost = append(lost, r)
		}
	}
	return lost
}

// MessageWait is a wait for a message.
type MessageWait struct {
	// Operation is Send or Recv, and Peer its other end, which may be AnySource: others can see
	// meanwhile that this rank waits there.
	Operation driver.Operation
	Peer      int
	// Ready reports whether the wait has ended.
	Ready func() bool
	// From lists the group ranks that are waited for.
	From []int
	// Doing names the wait for error messages.
	Doing func() string
	// Why, if it is set, says why what is waited for will not come, or nil.
	Why func() error
}

// AwaitMessage waits. The caller has called BeginUse, and has polled before.
func (g *Group) AwaitMessage(w MessageWait) error {
	b, word := &g.me.status, messageWait(w.Operation, w.Peer)
	spin.StoreRelease64(&b.messageSince, sys.Monotonic())
	spin.StoreRelease64(&b.message, word)
	defer atomic.CompareAndSwapUint64(&b.message, word, 0)
	return g.waitSlowly(context.Background(), &waiting{
		ready: w.Ready, from: w.From, doing: w.Doing, why: w.Why,
	})
}

// messageWait packs what a rank waits for into a word of its status: the operation, and the group
// rank of the peer plus 2, so that any source is 1.
func messageWait(o driver.Operation, peer int) uint64 { return uint64(o)<<32 | uint64(peer+2) }

// describeMessage says what a rank waits for in a message, or nothing.
func (b *status) describeMessage(ranks []int) string {
	word := spin.LoadAcquire64(&b.message)
	if word == 0 {
		return ""
	}
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&b.messageSince)).
		Round(time.Millisecond)
	o, peer := driver.Operation(word>>32), int(word&0xffffffff)-2
	if peer < 0 || peer >= len(ranks) {
		return fmt.Sprintf("in %v from any rank for %v", o, waited)
	}
	if o == driver.Send {
		return fmt.Sprintf("in %v to rank %d of the world for %v", o, ranks[peer], waited)
	}
	return fmt.Sprintf("in %v from rank %d of the world for %v", o, ranks[peer], waited)
}

// PollSoon polls a word of the region for as long as a caller's own thread is kept by a message.
func (g *Group) PollSoon(word *uint64, want uint64) bool {
	return g.pollFor(word, want, messageYields)
}

// pollFor polls a word of the region, and gives so many turns to others, for briefTime at most.
func (g *Group) pollFor(word *uint64, want uint64, yields int) bool {
	if spin.UntilAtLeast64(word, want, 0, g.budget.polls) {
		return true
	}
	var begin uint64
	for turn := range yields {
		g.machine.yield()
		if spin.LoadAcquire64(word) >= want {
			return true
		}
		if turn%fewYieldsPerCheck == 0 {
			now := sys.Monotonic()
			if begin == 0 {
				begin = now
			}
			if now-begin > briefTime {
				return false
			}
		}
	}
	return false
}

// messageYields is how many turns a caller's own thread gives to others in a message: a few, since
// programs call Recv before the Send that the peer waits for.
const messageYields = 4
