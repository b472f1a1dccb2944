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

// budget determines how long a wait spins and yields before it sleeps.
type budget struct {
	// polls is the number of polls before the first yield, and morePolls after each yield, with a
	// PAUSE in between. Polling without a PAUSE slows down the rank that is about to write the
	// line.
	polls, morePolls uint32
	// parallel is the number of other ranks that can run while this one does. If more are missing,
	// one of them waits for a processor, possibly this one's.
	parallel int
	// yields is the number of yields before the first sleep. The caller's thread yields at most
	// briefYields times and for briefTime before the work is passed to the stream's worker.
	yields, briefYields int
}

const (
	// freePolls is the number of polls of a rank that does not share its processor.
	freePolls = 500
	// sharedPolls is the number of polls of a rank that does. They last longer than the transfer of
	// a line from another processor, and less than a context switch. With half of them, all-reduce
	// of 8 bytes on 4 ranks of 2 processors was a tenth slower.
	sharedPolls = 40
)

// newBudget lets ranks spin long if each has a processor. If ranks outnumber processors, the
// awaited rank may be waiting for the processor of this one, so spinning only costs time: in a C
// program, 2,000 pauses instead of 20 made an all-reduce of 64 KiB on 4 ranks of 2 processors 17
// times slower.
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
	// yieldsPerCheck is the number of yields between two checks of the peers. On a busy processor a
	// yield lasts long, so the peers are then checked after fewer yields, checkInterval apart.
	yieldsPerCheck, fewYieldsPerCheck = 64, 8
	checkInterval                     = 5 * uint64(time.Millisecond)
	// briefTime limits the wait on a caller's thread, which does not check the peers. The wait
	// reaches this limit only on a busy machine, where each yield may last long.
	briefTime = 20 * uint64(time.Millisecond)
)

// waiting describes a slow wait: every block's word must reach want, or the value that at returns
// for its rank, or, if it is set, ready must return true.
type waiting struct {
	word  func(*block) *uint64
	at    func(rank int) *uint64
	want  uint64
	ready func() bool
	// from lists the group ranks that are waited for.
	from []int
	// doing describes the wait for error messages.
	doing func() string
	// collective is the ticket of the collective that waits, or 0; exchange is set for the control
	// lane. From these a peer can detect that the two ranks can never meet.
	collective uint64
	operation  driver.Operation
	exchange   bool
	// ordered is set if this rank launches no collective during the wait.
	ordered bool
	// begin is the time at which the wait was published, by the machine's monotonic clock.
	begin uint64
	// timeout limits the wait.
	timeout time.Duration
	// ignoreFaults is set for waits that continue after faults, and work if a plane waits for work
	// that it has launched.
	ignoreFaults, work bool
	// why, if set, returns the reason why the awaited event will not happen, or nil.
	why func() error
	// states is set by rankStates.
	states []control.RankState
}

// waits makes the slow waits of this rank, and publishes in its status what it waits for.
type waits struct {
	of      *ranks
	fault   *fault
	machine *Machine
	budget  budget

	warned atomic.Uint64 // time of the last warning, by the monotonic clock, or 0

	mu   *ranked.Spin[groupMu] // Group.Mu
	list []*waiting            // slow waits in collectives; guarded by mu
}

// waitSlowly implements the slow part of a wait: it yields, then sleeps, and calls checkWait at
// intervals.
func (ws *waits) waitSlowly(ctx context.Context, w *waiting) error {
	ranked.Waiting()
	begin := sys.Monotonic()
	w.timeout = ws.machine.cfg.Timeout
	if at, ok := ctx.Deadline(); ok {
		w.timeout = max(0, time.Until(at))
	}
	ws.publishWait(w, begin)
	defer ws.unpublishWait(w)
	looked := begin
	for turn := 0; ; turn++ {
		if len(ws.missing(w)) == 0 {
			return nil
		}
		if turn < ws.budget.yields {
			ws.machine.yield()
			if turn%yieldsPerCheck != 0 &&
				(turn%fewYieldsPerCheck != 0 || sys.Monotonic()-looked < checkInterval) {
				continue
			}
			looked = sys.Monotonic()
		} else {
			if turn == ws.budget.yields && w.collective == 0 {
				wakePoller()
			}
			ws.sleep(w, turn-ws.budget.yields)
			if err := ws.machine.interrupted(); err != nil {
				return fmt.Errorf("%s: %w", w.doing(), err)
			}
		}
		if err := ws.checkWait(ctx, w); err != nil {
			return err
		}
	}
}

// wakePoller makes another thread of this process look for work and, as there is none, poll the
// network. The thread that sleeps on a futex may have been the one that polled before, and Go's
// runtime notices only after 10 ms that no thread does: peers would wait that long for the
// descriptors that this rank exports. Registering 1,000 segments on 2 ranks took 5 to 8 s without
// this, and takes 0.2 s. Collectives need no descriptors.
func wakePoller() { go func() {}() }

// publishWait writes the wait into this rank's status, which other ranks can read.
func (ws *waits) publishWait(w *waiting, begin uint64) {
	b := &ws.of.me.status
	w.begin = begin
	switch {
	case w.collective != 0:
		ws.mu.Lock()
		defer ws.mu.Unlock()
		ws.list = append(ws.list, w)
		ws.publishLatest()
	case w.exchange:
		spin.StoreRelease64(&b.since, begin)
		spin.StoreRelease64(&b.inExchange, spin.LoadAcquire64(&b.exchanges))
	}
}

// unpublishWait removes this wait from the status. Other waits of this rank remain.
func (ws *waits) unpublishWait(w *waiting) {
	switch {
	case w.collective != 0:
		ws.mu.Lock()
		defer ws.mu.Unlock()
		ws.list = slices.DeleteFunc(ws.list, func(o *waiting) bool { return o == w })
		ws.publishLatest()
	case w.exchange:
		spin.StoreRelease64(&ws.of.me.status.inExchange, 0)
	}
}

// publishLatest publishes, of the collectives in which this rank waits, the one with the highest
// ticket, which shows best which ranks can still meet. ws.mu is held.
func (ws *waits) publishLatest() {
	b := &ws.of.me.status
	if len(ws.list) == 0 {
		spin.StoreRelease64(&b.inCollective, 0)
		return
	}
	last := slices.MaxFunc(ws.list, func(x, y *waiting) int {
		return cmp.Compare(x.collective, y.collective)
	})
	spin.StoreRelease64(&b.operation, uint64(last.operation))
	spin.StoreRelease64(&b.since, last.begin)
	spin.StoreRelease64(&b.inCollective, last.collective)
}

// missing lists the group ranks whose word has not reached its value yet.
func (ws *waits) missing(w *waiting) []int {
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
			word = w.word(ws.of.blocks[r])
		}
		if spin.LoadAcquire64(word) < w.want {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// sleep waits on this rank's futex for one interval, unless the wait has ended meanwhile.
func (ws *waits) sleep(w *waiting, round int) {
	word := atomic.LoadUint32(&ws.of.me.wakeup.word)
	atomic.AddInt32(&ws.of.me.wakeup.sleeping, 1)
	defer atomic.AddInt32(&ws.of.me.wakeup.sleeping, -1)
	if len(ws.missing(w)) == 0 {
		return
	}
	slice := min(firstSleep<<min(round, 10), longSleep)
	sys.FutexWait(&ws.of.me.wakeup.word, word, slice)
}

// checkWait returns the reason why the wait must end without success, or nil. It warns of late
// ranks.
func (ws *waits) checkWait(ctx context.Context, w *waiting) error {
	if w.why != nil {
		if err := w.why(); err != nil {
			return err
		}
	}
	states := ws.rankStates(w)
	q := ws.waitStatus(w)
	// This process may have been stopped until long after the last rank arrived: then none is
	// missing.
	q.DeadlinePassed = errors.Is(ctx.Err(), context.DeadlineExceeded)
	v := control.Judge(&q, states)
	if v.Left && q.Waited < control.Grace && ctx.Err() == nil {
		return nil
	}
	if v.Err != nil {
		return v.Err
	}
	if errors.Is(ctx.Err(), context.Canceled) && len(ws.missing(w)) > 0 {
		return control.Interrupted(&q, states, context.Cause(ctx))
	}
	ws.warn(v.Warning)
	return nil
}

// waitStatus describes a wait at this moment, for control.Judge.
func (ws *waits) waitStatus(w *waiting) control.WaitStatus {
	now := sys.Monotonic()
	q := control.WaitStatus{
		Group: *ws.of.cfg, Doing: w.doing, Collective: w.collective, Exchange: w.exchange || w.ordered,
		Work: w.work, IgnoreFaults: w.ignoreFaults, FailedFor: -1,
		Waited: time.Duration(now - w.begin), Timeout: w.timeout,
		Late: ws.machine.cfg.Late, Warned: -1,
	}
	if ws.fault.HasFailed() {
		q.Cause = ws.fault.Cause()
	}
	if at := ws.warned.Load(); at != 0 {
		q.Warned = time.Duration(now - min(at, now))
	}
	return q
}

// warn warns of late ranks, unless another wait of this rank has just done so.
func (ws *waits) warn(late *driver.LateWarning) {
	if late == nil {
		return
	}
	now, at := sys.Monotonic(), ws.warned.Load()
	if at != 0 && now-min(at, now) < uint64(ws.machine.cfg.Late.After) {
		return
	}
	if ws.warned.CompareAndSwap(at, now) {
		ws.machine.cfg.Late.Warn(*late)
	}
}

// rankStates returns the current state of every rank. The result belongs to w and is valid until
// the next call. If a rank fails while the states are read, rankStates reads them again: other
// ranks may have left their calls because of the failure, and would seem to be in none. Each rank
// fails only once, which bounds the number of readings.
func (ws *waits) rankStates(w *waiting) []control.RankState {
	if w.states == nil {
		w.states = make([]control.RankState, len(ws.of.blocks))
	}
	for range 1 + len(ws.of.blocks) {
		ws.readStates(w)
		if !ws.failedSince(w) {
			break
		}
	}
	return w.states
}

// failedSince reports whether a rank has failed since its state was read.
func (ws *waits) failedSince(w *waiting) bool {
	for r, b := range ws.of.blocks {
		if control.Reason(atomic.LoadUint32(&b.wakeup.failed)) != w.states[r].Failed {
			return true
		}
	}
	return false
}

// readStates reads the state of every rank in the order that control.RankState asks for.
func (ws *waits) readStates(w *waiting) {
	for r, p := range ws.of.peers {
		w.states[r].Lost = p != nil && p.lost.Load()
	}
	for r, b := range ws.of.blocks {
		w.states[r].Failed = control.Reason(atomic.LoadUint32(&b.wakeup.failed))
		w.states[r].Left = spin.LoadAcquire64(&b.status.closed) != 0
	}
	for r, b := range ws.of.blocks {
		if r != ws.of.cfg.Rank {
			b.status.read(&w.states[r])
			w.states[r].Message = cmp.Or(b.status.describeMessage(ws.of.cfg.Ranks), b.describeValue())
		}
	}
	ws.of.me.status.read(&w.states[ws.of.cfg.Rank])
	for r := range w.states {
		w.states[r].Missing = false
	}
	for _, r := range ws.missing(w) {
		w.states[r].Missing = true
	}
}

// read copies the status of a rank into its state. It reads the fields that prove that the rank
// waits for this one before those that could refute it.
func (b *status) read(s *control.RankState) {
	s.InExchange = spin.LoadAcquire64(&b.inExchange)
	s.InCollective = spin.LoadAcquire64(&b.inCollective)
	s.Operation = driver.Operation(spin.LoadAcquire64(&b.operation))
	now, since := sys.Monotonic(), spin.LoadAcquire64(&b.since)
	s.Waited = time.Duration(now - min(since, now))
	s.Exchanges = spin.LoadAcquire64(&b.exchanges)
	s.Submitted = spin.LoadAcquire64(&b.submitted)
}

// peerFault returns an error that names the failed peers. There must be one.
func (ws *waits) peerFault(doing func() string) error {
	return control.SomePeerFault(*ws.of.cfg, ws.rankStates(&waiting{}), doing)
}

// MessageWait describes a wait for a message.
type MessageWait struct {
	// Operation is Send or Recv, and Peer the other rank, which may be AnySource. Both are
	// published in this rank's status.
	Operation driver.Operation
	Peer      int
	// Ready reports whether the wait has ended.
	Ready func() bool
	// From lists the group ranks that are waited for.
	From []int
	// Doing describes the wait for error messages.
	Doing func() string
	// Why, if set, returns the reason why the awaited event will not happen, or nil.
	Why func() error
}

// AwaitMessage waits. The caller has called BeginUse, and has polled before.
func (ws *waits) AwaitMessage(w MessageWait) error {
	b, word := &ws.of.me.status, messageWait(w.Operation, w.Peer)
	spin.StoreRelease64(&b.messageSince, sys.Monotonic())
	spin.StoreRelease64(&b.message, word)
	defer atomic.CompareAndSwapUint64(&b.message, word, 0)
	return ws.waitSlowly(context.Background(), &waiting{
		ready: w.Ready, from: w.From, doing: w.Doing, why: w.Why,
	})
}

// messageWait packs what a rank waits for into a word of its status: the operation, and the group
// rank of the peer plus 2, so that AnySource is 1.
func messageWait(o driver.Operation, peer int) uint64 { return uint64(o)<<32 | uint64(peer+2) }

// describeMessage describes the message that a rank waits for, or returns "".
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

// PollSoon polls a word of the region for as long as a message may occupy the caller's thread.
func (ws *waits) PollSoon(word *uint64, want uint64) bool {
	return ws.pollFor(word, want, messageYields)
}

// pollFor polls a word of the region with the given number of yields, for at most briefTime.
func (ws *waits) pollFor(word *uint64, want uint64, yields int) bool {
	if spin.UntilAtLeast64(word, want, 0, ws.budget.polls) {
		return true
	}
	var begin uint64
	for turn := range yields {
		ws.machine.yield()
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

// messageYields is the number of yields of a caller's thread in a message. It is small, since
// programs call Recv before the Send that the peer waits for.
const messageYields = 4
