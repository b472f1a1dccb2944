package shm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// plane is a Group whose collectives run elsewhere, for example on GPUs. Tickets number these
// collectives. Steps number comparisons, which are optional.
type plane struct {
	Group
	peerRanks []int // other group ranks
	// checked holds the counters of the latest check without a failed peer. It is guarded by Mu.
	checked eventCounters
	// lastTicket is the last ticket that all peers that have left had submitted.
	lastTicket uint64
}

// One of eventCounters changes before this rank can observe that a peer fails, leaves or is lost.
// Until then, a launch need not check every peer.
type eventCounters struct {
	wakeup    uint32 // incremented by peers that fail or leave
	exitCount uint32 // processes that have exited
}

const (
	// spinBudget bounds polling without yields. A small collective takes about as long.
	spinBudget = 50 * time.Microsecond
	yieldTime  = uint64(500 * time.Microsecond)
	// Completed work does not wake Await: it may return one sleep late.
	minAwaitSleep, maxAwaitSleep = 20 * time.Microsecond, 100 * time.Microsecond
)

// Join joins a group whose data is transferred elsewhere. All ranks must call it and be on this
// machine. The plane must be closed before the machine. The caller, not GroupConfig.Check, chooses
// which calls to compare, identically on all ranks.
func (m *Machine) Join(ctx context.Context, group driver.GroupConfig) (control.Plane, error) {
	p := &plane{lastTicket: math.MaxUint64}
	if err := p.Group.Join(ctx, m, group, 0); err != nil {
		return nil, err
	}

	p.peerRanks = p.OtherRanks()
	return p, nil
}

// SameMachine reports whether world ranks can call Join. It waits until they have opened their
// Machines. The result is the same on all ranks.
func (m *Machine) SameMachine(ctx context.Context, ranks []int) (bool, error) {
	ownID, err := machineID()
	if err != nil {
		return false, err
	}

	ctx, cancel := m.withDefaultTimeout(ctx)
	defer cancel()
	begin := time.Now()
	group := driver.GroupConfig{Ranks: ranks, Rank: slices.Index(ranks, m.cfg.Rank)}
	for _, rank := range ranks {
		value, err := m.cfg.Store.Get(ctx, rankKey(rank))
		if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return false, control.AbsentError("joining a group", group, time.Since(begin),
				control.FindAbsentRanks(m.cfg.Store, ranks, rankKey), nil, err)
		}

		if err != nil {
			return false, fmt.Errorf("asking where rank %d is: %w", rank, err)
		}

		if _, peerID, _ := strings.Cut(string(value), " "); peerID != ownID {
			return false, nil
		}
	}

	return true, nil
}

func (p *plane) Submit() uint64 {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.closed || p.withdrawn {
		p.submitted++
		return p.submitted
	}

	return p.Ticket()
}

func (p *plane) TrySubmit() (ticket uint64, ok bool) {
	p.Mu.Lock()
	ok = !p.closed && !p.fault.set.Load() &&
		(p.eventCounters() == p.checked || !p.peerFailedOrClosed())
	if ok = ok && p.submitted < p.lastTicket; ok {
		p.submitted++
		ticket = p.submitted
		if !p.withdrawn {
			spin.StoreRelease64(&p.ownBlock.status.submitted, ticket)
		}
	}

	p.Mu.Unlock()
	return ticket, ok
}

func (p *plane) Compare(ticket uint64, call *driver.Call) error {
	if err := p.BeginUse(); err != nil {
		return err
	}

	defer p.EndUse()
	if err := p.Cause(); err != nil {
		return err
	}

	p.Begin(true, p.Counts.Balance())
	p.Post(call.Digest, nil, 0)
	if err := p.compareLines(ticket, call); err != nil {
		return p.fail(p.refine(err, ticket, call))
	}

	return nil
}

// refine replaces another rank's fault with a MismatchError if some rank announced a different
// call.
func (p *plane) refine(err error, ticket uint64, call *driver.Call) error {
	if !errors.Is(err, driver.ErrFault) {
		return err
	}

	if others := p.DifferingRanks(ticket, call.Digest); len(others) > 0 {
		return p.cfg.Mismatch(ticket, call, others...)
	}

	return err
}

func (p *plane) compareLines(ticket uint64, call *driver.Call) error {
	const poll = true
	if !p.AwaitLinesBriefly(poll) {
		if err := p.AwaitLinesSlowly(call, ticket); err != nil {
			return err
		}
	}

	if err := p.CompareStep(call, ticket); err != nil {
		return err
	}

	if p.PeerFailedBefore() {
		return p.PeerFailedBeforeError(call, ticket)
	}

	return nil
}

func (p *plane) Await(ctx context.Context, w control.Wait) error {
	if p.pollBriefly(&w) {
		return nil
	}

	if err := p.BeginUse(); err != nil {
		return err
	}

	defer p.EndUse()
	state := p.newSlowWait(&w)
	defer freeSlowWait(state)
	p.publishWait(state, sys.Monotonic())
	defer p.unpublishWait(state)
	var grace control.GraceTimer
	for sleepCount := 0; !w.Done(); {
		failed := grace.Elapsed(w.Ticket != 0 && p.peerFailed())
		if err := p.verdict(state, failed); err != nil && !w.Done() {
			return p.fail(w.AddDetails(err))
		}

		if ctx.Err() != nil && !w.Done() {
			return p.interruptedError(ctx, state)
		}

		if end := state.begin + yieldTime; sys.Monotonic() < end {
			p.yieldUntil(&w, end)
			continue
		}

		p.sleepBriefly(sleepCount)
		sleepCount++
	}

	return nil
}

func (p *plane) interruptedError(ctx context.Context, state *slowWait) error {
	status := p.waitStatus(state)
	status.NoteDeadline(ctx, ctx.Err())
	return control.InterruptedWaitError(&status, p.rankStates(state), context.Cause(ctx))
}

func (p *plane) pollBriefly(w *control.Wait) bool {
	if w.Done() {
		return true
	}

	if p.budget.polls < freePolls {
		return false
	}

	for begin := time.Now(); time.Since(begin) < spinBudget; {
		spin.Pause(1)
		if w.Done() {
			return true
		}
	}

	return false
}

func (p *plane) yieldUntil(w *control.Wait, until uint64) {
	for !w.Done() && sys.Monotonic() < until {
		p.machine.yield()
	}
}

func (p *plane) sleepBriefly(sleepCount int) {
	word := spin.LoadAcquire32(&p.ownBlock.wakeup.word)
	if !p.fault.set.Load() {
		duration := min(minAwaitSleep<<min(sleepCount, 3), maxAwaitSleep)
		sys.FutexWait(&p.ownBlock.wakeup.word, word, duration)
	}
}

var slowWaits = sync.Pool{New: func() any { return new(slowWait) }}

// newSlowWait returns a slowWait, to be freed by freeSlowWait.
func (p *plane) newSlowWait(w *control.Wait) *slowWait {
	state := slowWaits.Get().(*slowWait)
	*state = slowWait{
		word: func(b *block) *uint64 { return &b.status.submitted }, want: w.Ticket,
		awaited: p.peerRanks, collective: w.Ticket, operation: w.Operation, callText: w.CallText,
		isWork: true, timeout: p.cfg.Timeout.Get(),
		states: state.states[:0], missingRanks: state.missingRanks[:0],
	}
	return state
}

// freeSlowWait recycles a slowWait, which must not be published.
func freeSlowWait(state *slowWait) {
	*state = slowWait{states: state.states[:0], missingRanks: state.missingRanks[:0]}
	slowWaits.Put(state)
}

// verdict warns of late ranks. It returns an error if the wait may never end.
func (p *plane) verdict(state *slowWait, failedFor time.Duration) error {
	if state.collective == 0 {
		return p.Cause()
	}

	status := p.waitStatus(state)
	status.SincePeerFailure = failedFor
	v := control.Judge(&status, p.rankStates(state))
	p.warn(v.Warning)
	return v.Err
}

func (p *plane) Diagnose(w control.Wait, since time.Time) error {
	if err := p.BeginUse(); err != nil {
		return err
	}

	defer p.EndUse()
	state := p.newSlowWait(&w)
	defer freeSlowWait(state)
	// No wait began before boot, when the clock was 0.
	state.begin = sys.Monotonic() - min(uint64(time.Since(since)), sys.Monotonic())
	err := p.verdict(state, -1)
	if err != nil && w.IsDone() {
		return nil
	}

	return w.AddDetails(err)
}

func (p *plane) PeerFault(callText string) error {
	if err := p.BeginUse(); err != nil {
		return err
	}

	defer p.EndUse()
	return control.PeerFaultError(p.cfg, p.rankStates(&slowWait{}), callText)
}

func (p *plane) PeerFailed() bool {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.peerFailedOrClosed()
}

func (p *plane) peerFailedOrClosed() bool {
	if p.closed {
		return true // the control region may be unmapped
	}

	now := p.eventCounters()
	if now == p.checked {
		return false
	}

	if p.peerFailed() || len(p.lostPeers()) > 0 {
		return true
	}

	p.checked = now
	for _, b := range p.otherBlocks {
		if spin.LoadAcquire64(&b.status.closed) != 0 {
			p.lastTicket = min(p.lastTicket, spin.LoadAcquire64(&b.status.submitted))
		}
	}

	return false
}

func (p *plane) eventCounters() eventCounters {
	return eventCounters{atomic.LoadUint32(&p.ownBlock.wakeup.word), p.machine.exitCount.Load()}
}

func (p *plane) Withdraw() bool {
	if p.BeginUse() != nil {
		return true
	}

	defer p.EndUse()
	p.Mu.Lock()
	defer p.Mu.Unlock()
	leastSubmitted := p.submitted
	for _, b := range p.otherBlocks {
		leastSubmitted = min(leastSubmitted, spin.LoadAcquire64(&b.status.submitted))
	}

	if leastSubmitted == p.submitted {
		return false
	}

	p.withdrawn = true
	spin.StoreRelease64(&p.ownBlock.status.submitted, leastSubmitted)
	return true
}

func (p *plane) Close() error {
	if _, hasLeft := p.LeaveGroup(); !hasLeft {
		return nil
	}

	return p.Release()
}
