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

type budget struct {
	// polls is the number of polls before the first yield, morePolls after each yield. A PAUSE
	// separates polls, which otherwise slow down the rank that writes.
	polls, morePolls uint32
	// parallelRanks is the number of other ranks that can run at the same time. If more are
	// missing, one may be waiting for this rank's processor.
	parallelRanks int
	// yields limits the yields before the first sleep, briefYields those on the caller's thread.
	yields, briefYields int
}

const (
	freePolls = 500
	// sharedPolls is for ranks that share processors: more than the transfer of a line, less than a
	// context switch. With half as many, an all-reduce of 8 bytes by 4 ranks on 2 processors was a
	// tenth slower.
	sharedPolls = 40
)

// newBudget lets ranks spin for long only if each has its own processor. In a C program, an
// all-reduce of 64 KiB by 4 ranks on 2 processors was 17 times slower with 2,000 pauses than with
// 20.
func newBudget(m *Machine, ranks, processors int) budget {
	b := budget{polls: freePolls, parallelRanks: processors - 1, yields: 400, briefYields: 300}
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
	// A wait checks the peers after yieldsPerCheck yields, or after yieldsPerClockRead once
	// checkInterval has passed, because yields take long on a busy processor.
	yieldsPerCheck, yieldsPerClockRead = 64, 8
	checkInterval                      = 5 * uint64(time.Millisecond)
	// briefTime bounds a wait on a caller's thread, which does not check the peers.
	briefTime = 20 * uint64(time.Millisecond)
)

// slowWait describes a wait that may sleep, until isReady returns true or, without isReady, a word
// of every awaited rank reaches want.
type slowWait struct {
	// word is replaced by wordOf, if set.
	word       func(*block) *uint64
	wordOf     func(rank int) *uint64
	want       uint64
	isReady    func() bool
	awaited    []int
	callText   func() string
	collective uint64
	operation  driver.Operation
	isExchange bool // on driver.LaneControl
	isOrdered  bool // this rank launches no collective during the wait
	// begin is the publication time on the machine's monotonic clock.
	begin   uint64
	timeout time.Duration
	// ignoreFaults continues the wait after faults. isWork is set in a wait for this rank's work on
	// a plane.
	ignoreFaults, isWork bool
	findFault            func() error        // may be nil; returns a reason to give up
	states               []control.RankState // result of rankStates
	missingRanks         []int               // result of missing
}

// waiter performs slow waits and publishes them in the rank's status.
type waiter struct {
	ranks   *ranks
	fault   *fault
	machine *Machine
	budget  budget

	lastWarning atomic.Uint64 // time of the last warning on the monotonic clock, or 0

	mu    *ranked.Spin[groupMu] // Group.Mu
	waits []*slowWait           // slow waits, oldest first; guarded by mu
}

func (ws *waiter) waitSlowly(ctx context.Context, w *slowWait) error {
	ranked.AssertMayWait()
	begin := sys.Monotonic()
	w.timeout = ws.ranks.cfg.Timeout.Get()
	if deadline, ok := ctx.Deadline(); ok {
		w.timeout = max(0, time.Until(deadline))
	}

	ws.publishWait(w, begin)
	defer ws.unpublishWait(w)
	lastCheck := begin
	for round := 0; ; round++ {
		if len(ws.missing(w)) == 0 {
			return nil
		}

		if round < ws.budget.yields {
			ws.machine.yield()
			if round%yieldsPerCheck != 0 &&
				(round%yieldsPerClockRead != 0 || sys.Monotonic()-lastCheck < checkInterval) {
				continue
			}

			lastCheck = sys.Monotonic()
		} else {
			if round == ws.budget.yields && w.collective == 0 {
				wakePoller()
			}

			ws.sleep(w, round-ws.budget.yields)
			if err := ws.machine.checkInterrupt(); err != nil {
				return fmt.Errorf("%s: %w", w.callText(), err)
			}
		}

		if err := ws.checkWait(ctx, w); err != nil {
			return err
		}
	}
}

// wakePoller makes another thread poll the network: the calling thread may have done so and is
// about to sleep. Otherwise, Go's runtime takes up to 10 ms to notice, while peers wait for
// descriptors. Registering 1,000 segments on 2 ranks then took 5 to 8 s instead of 0.2 s.
func wakePoller() { go func() {}() }

func (ws *waiter) publishWait(w *slowWait, begin uint64) {
	b := &ws.ranks.ownBlock.status
	w.begin = begin
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.waits = append(ws.waits, w)
	switch {
	case w.collective != 0:
		ws.publishLatest()
	case w.isExchange:
		spin.StoreRelease64(&b.since, begin)
		spin.StoreRelease64(&b.awaitedStep, spin.LoadAcquire64(&b.exchanges))
	}
}

func (ws *waiter) unpublishWait(w *slowWait) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.waits = slices.DeleteFunc(ws.waits, func(o *slowWait) bool { return o == w })
	switch {
	case w.collective != 0:
		ws.publishLatest()
	case w.isExchange:
		spin.StoreRelease64(&ws.ranks.ownBlock.status.awaitedStep, 0)
	}
}

// publishLatest publishes the wait with the highest ticket, which shows whether this rank can reach
// its peers' collectives. The caller must hold ws.mu.
func (ws *waiter) publishLatest() {
	b, last := &ws.ranks.ownBlock.status, &slowWait{}
	for _, w := range ws.waits {
		if w.collective > last.collective {
			last = w
		}
	}

	if last.collective == 0 {
		spin.StoreRelease64(&b.awaitedTicket, 0)
		return
	}

	spin.StoreRelease64(&b.operation, uint64(last.operation))
	spin.StoreRelease64(&b.since, last.begin)
	spin.StoreRelease64(&b.awaitedTicket, last.collective)
}

// missing lists awaited group ranks that have not arrived. Only the waiting goroutine may call it.
// The result is valid until the next call.
func (ws *waiter) missing(w *slowWait) []int {
	if w.isReady != nil {
		if w.isReady() {
			return nil
		}

		return w.awaited
	}

	w.missingRanks = ws.appendLate(w.missingRanks[:0], w)
	return w.missingRanks
}

func (ws *waiter) appendLate(ranks []int, w *slowWait) []int {
	for _, r := range w.awaited {
		var word *uint64
		if w.wordOf != nil {
			word = w.wordOf(r)
		} else {
			word = w.word(ws.ranks.blocks[r])
		}

		if spin.LoadAcquire64(word) < w.want {
			ranks = append(ranks, r)
		}
	}

	return ranks
}

func (ws *waiter) sleep(w *slowWait, round int) {
	word := atomic.LoadUint32(&ws.ranks.ownBlock.wakeup.word)
	atomic.AddInt32(&ws.ranks.ownBlock.wakeup.sleeping, 1)
	defer atomic.AddInt32(&ws.ranks.ownBlock.wakeup.sleeping, -1)
	if len(ws.missing(w)) == 0 {
		return
	}

	interval := min(firstSleep<<min(round, 10), longSleep)
	sys.FutexWait(&ws.ranks.ownBlock.wakeup.word, word, interval)
}

func (ws *waiter) checkWait(ctx context.Context, w *slowWait) error {
	if w.findFault != nil {
		if err := w.findFault(); err != nil {
			return err
		}
	}

	// Read status and ctxErr before states: a deadline must not end the wait if all ranks arrived
	// while this process was stopped.
	status, ctxErr := ws.waitStatus(w), ctx.Err()
	status.NoteDeadline(ctx, ctxErr)
	states := ws.rankStates(w)
	v := control.Judge(&status, states)
	if v.Left && status.Waited < control.Grace && ctxErr == nil {
		return nil
	}

	if v.Err != nil {
		return v.Err
	}

	if errors.Is(ctxErr, context.Canceled) && len(ws.missing(w)) > 0 {
		return control.InterruptedWaitError(&status, states, context.Cause(ctx))
	}

	ws.warn(v.Warning)
	return nil
}

func (ws *waiter) waitStatus(w *slowWait) control.WaitStatus {
	now := sys.Monotonic()
	status := control.WaitStatus{
		Group: *ws.ranks.cfg, CallText: w.callText, Collective: w.collective,
		IsExchange: w.isExchange || w.isOrdered,
		IsWork:     w.isWork, IgnoreFaults: w.ignoreFaults, SincePeerFailure: -1,
		Waited: time.Duration(now - w.begin), Timeout: w.timeout,
		Late: ws.machine.cfg.Late, SinceWarning: -1,
	}
	if ws.fault.HasFailed() {
		status.Cause = ws.fault.Cause()
	}

	if lastWarning := ws.lastWarning.Load(); lastWarning != 0 {
		status.SinceWarning = time.Duration(now - min(lastWarning, now))
	}

	return status
}

func (ws *waiter) warn(late *driver.LateWarning) {
	if late == nil {
		return
	}

	now, lastWarning := sys.Monotonic(), ws.lastWarning.Load()
	if lastWarning != 0 && now-min(lastWarning, now) < uint64(ws.machine.cfg.Late.After) {
		return
	}

	if ws.lastWarning.CompareAndSwap(lastWarning, now) {
		ws.machine.cfg.Late.Warn(*late)
	}
}

// rankStates returns states that are valid until the next call with the same wait. If a rank fails
// meanwhile, it reads them again, because the failure may have ended other ranks' calls.
func (ws *waiter) rankStates(w *slowWait) []control.RankState {
	w.states = slices.Grow(w.states[:0], len(ws.ranks.blocks))[:len(ws.ranks.blocks)]
	for range 1 + len(ws.ranks.blocks) {
		ws.readStates(w)
		if !ws.failedSince(w) {
			break
		}
	}

	return w.states
}

func (ws *waiter) failedSince(w *slowWait) bool {
	for r, b := range ws.ranks.blocks {
		if control.Reason(atomic.LoadUint32(&b.wakeup.failed)) != w.states[r].Failed {
			return true
		}
	}

	return false
}

// readStates uses the order that control.RankState requires.
func (ws *waiter) readStates(w *slowWait) {
	for r, p := range ws.ranks.peers {
		w.states[r].Lost = p != nil && p.isExited.Load()
	}

	for r, b := range ws.ranks.blocks {
		w.states[r].Failed = control.Reason(atomic.LoadUint32(&b.wakeup.failed))
		w.states[r].Left = spin.LoadAcquire64(&b.status.closed) != 0
	}

	for r, b := range ws.ranks.blocks {
		if r == ws.ranks.cfg.Rank {
			continue
		}

		state := &w.states[r]
		b.status.read(state)
		state.Message = cmp.Or(b.status.describeMessage(ws.ranks.cfg.Ranks), b.describeValue(),
			b.status.describeFetch(ws.ranks.cfg.Ranks))
		p := ws.ranks.peers[r]
		if p != nil && state.FetchesFrom != 0 && sys.IsStopped(p.PID()) {
			state.FetchesFrom, state.Message = 0, "has been stopped by a signal or a debugger"
		}
	}

	ws.ranks.ownBlock.status.read(&w.states[ws.ranks.cfg.Rank])
	for r := range w.states {
		w.states[r].Missing = false
	}

	for _, r := range ws.missing(w) {
		w.states[r].Missing = true
	}
}

// read reads the counts last: they may show that the wait is over.
func (s *status) read(state *control.RankState) {
	state.InExchange = spin.LoadAcquire64(&s.awaitedStep)
	state.InCollective = spin.LoadAcquire64(&s.awaitedTicket)
	state.Operation = driver.Operation(spin.LoadAcquire64(&s.operation))
	now, since := sys.Monotonic(), spin.LoadAcquire64(&s.since)
	state.Waited = time.Duration(now - min(since, now))
	state.Exchanges = spin.LoadAcquire64(&s.exchanges)
	state.Submitted = spin.LoadAcquire64(&s.submitted)
	state.FetchesFrom = int(spin.LoadAcquire64(&s.fetch))
}

func (ws *waiter) peerFault(callText func() string) error {
	return control.NonNilFailedPeersError(*ws.ranks.cfg, ws.rankStates(&slowWait{}), callText)
}

// MessageWait describes a wait for a message.
type MessageWait struct {
	Operation driver.Operation
	Peer      int
	IsReady   func() bool
	Awaited   []int
	CallText  func() string
	FindFault func() error
}

// AwaitMessage must be called between BeginUse and EndUse.
func (ws *waiter) AwaitMessage(w MessageWait) error {
	b, word := &ws.ranks.ownBlock.status, messageWait(w.Operation, w.Peer)
	spin.StoreRelease64(&b.messageSince, sys.Monotonic())
	spin.StoreRelease64(&b.message, word)
	defer atomic.CompareAndSwapUint64(&b.message, word, 0)
	return ws.waitSlowly(context.Background(), &slowWait{
		isReady: w.IsReady, awaited: w.Awaited, callText: w.CallText, findFault: w.FindFault,
	})
}

// messageWait encodes the operation in the upper half, and in the lower half the peer's group rank
// plus 2, or 1 for AnySource.
func messageWait(o driver.Operation, peer int) uint64 { return uint64(o)<<32 | uint64(peer+2) }

func (s *status) describeMessage(ranks []int) string {
	word := spin.LoadAcquire64(&s.message)
	if word == 0 {
		return ""
	}

	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&s.messageSince)).
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

func (s *status) describeFetch(ranks []int) string {
	source := int(spin.LoadAcquire64(&s.fetch)) - 1
	if source < 0 || source >= len(ranks) {
		return ""
	}

	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&s.fetchSince)).
		Round(time.Millisecond)
	return fmt.Sprintf("has waited %v for memory of rank %d of the world", waited, ranks[source])
}

// PollBriefly reports whether a word of the region reaches want within a few yields, which block
// the caller's thread.
func (ws *waiter) PollBriefly(word *uint64, want uint64) bool {
	return ws.pollFor(context.Background(), word, want, messageYields)
}

// PollLonger is PollBriefly for a caller that has nothing else to do. It yields more often, and
// gives up when ctx ends.
func (ws *waiter) PollLonger(ctx context.Context, word *uint64, want uint64) bool {
	return ws.pollFor(ctx, word, want, ws.budget.briefYields)
}

func (ws *waiter) pollFor(
	ctx context.Context, word *uint64, want uint64, yields int,
) bool {
	if spin.UntilAtLeast64(word, want, 0, ws.budget.polls) {
		return true
	}

	var begin uint64
	for round := range yields {
		ws.machine.yield()
		if spin.LoadAcquire64(word) >= want {
			return true
		}

		if ctx.Err() != nil {
			return false
		}

		if round%yieldsPerClockRead == 0 {
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

// messageYields is small, because the peer may wait for a Send that follows this Recv in the
// program.
const messageYields = 4
