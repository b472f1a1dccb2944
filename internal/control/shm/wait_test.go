package shm

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// awaitSleep waits until rank 1 sleeps in a wait for rank 0.
func (pair *rankPair) awaitSleep() error {
	for !pair.planes[0].IsAsleep(1) {
		if pair.ctx.Err() != nil {
			return errors.New("rank 1 has not begun to sleep before the deadline")
		}

		runtime.Gosched()
	}

	return nil
}

func TestLongWaitSleepsAndIsWoken(t *testing.T) {
	for name, wait := range map[string]func(p *plane) error{
		"in a comparison": func(p *plane) error {
			return p.Compare(p.Submit(), &driver.Call{Operation: driver.Barrier})
		},
		"in an exchange": func(p *plane) error {
			_, err := p.Exchange(t.Context(), driver.LaneControl, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			pair := newRankPair(t)
			pair.join()
			errs := pair.runOnBoth(func(rank int) error {
				if rank == 0 {
					if err := pair.awaitSleep(); err != nil {
						return err
					}
				}

				return wait(pair.planes[rank]) // the call of rank 0 wakes rank 1
			})
			check(t, errs[0])
			check(t, errs[1])
			if n := atomic.LoadInt32(&pair.planes[1].ownBlock.wakeup.sleeping); n != 0 {
				t.Errorf("wakeup.sleeping = %d after the wait, want 0", n)
			}
		})
	}
}

// A wake-up increments wakeup.word, and costs a system call.
func TestOnlySleepersAreWoken(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	wakeup := &pair.planes[1].ownBlock.wakeup
	rank0 := &pair.planes[0].Group
	before := atomic.LoadUint32(&wakeup.word)
	rank0.wakeSleepers()
	if after := atomic.LoadUint32(&wakeup.word); after != before {
		t.Errorf("wakeSleepers woke a rank that was not asleep %d times, want 0", after-before)
	}

	atomic.AddInt32(&wakeup.sleeping, 1) // as if rank 1 slept
	rank0.wakeSleepers()
	atomic.AddInt32(&wakeup.sleeping, -1)
	if after := atomic.LoadUint32(&wakeup.word); after != before+1 {
		t.Errorf("wakeSleepers woke a sleeping rank %d times, want once", after-before)
	}
}

func TestRankIsMissingUntilItPostsTheStep(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	g := &pair.planes[0].Group
	g.step++ // rank 0 begins a step that rank 1 has not posted
	if n := g.countMissing(g.otherBlocks); n != 1 {
		t.Errorf("countMissing = %d before the other rank posts, want 1", n)
	}

	blockOfRank1 := g.blocks[1]
	line := &blockOfRank1.lines[g.step%2]
	spin.StoreRelease64(&line.step, g.step) // as if rank 1 posted the step
	if n := g.countMissing(g.otherBlocks); n != 0 {
		t.Errorf("countMissing = %d after the other rank has posted, want 0", n)
	}
}

// A brief wait blocks the caller's thread, so it gives up after briefTime.
func TestBriefWaitIsBounded(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	g := &pair.planes[0].Group
	g.step++ // rank 0 begins a step that rank 1 never posts
	const unlimited = 1 << 40
	g.budget.briefYields = unlimited
	for _, poll := range []bool{false, true} {
		hasPosted := g.awaitBriefly(g.otherBlocks, poll)
		if hasPosted {
			t.Errorf("awaitBriefly with poll %v = true for a step that was not posted, want false", poll)
		}
	}
}

// endedContext is a context that ended with err. It calls onErr when the code under test checks
// whether the context has ended.
type endedContext struct {
	context.Context
	onErr func()
	err   error
}

func (c endedContext) Err() error {
	c.onErr()
	return c.err
}

// PollLonger does not poll after it has seen that the context has ended. Otherwise, it would find
// the value that onErr writes.
func TestPollLongerEndsWithContext(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	const want = 1
	var word uint64
	ctx := endedContext{
		Context: t.Context(),
		onErr:   func() { spin.StoreRelease64(&word, want) },
		err:     context.Canceled,
	}
	hasFound := pair.planes[0].Group.PollLonger(ctx, &word, want)
	if hasFound {
		t.Error("PollLonger polled after the context had ended, want no more polls")
	}

	hasCheckedContext := word == want
	if !hasCheckedContext {
		t.Error("PollLonger did not check whether the context had ended, want a check")
	}
}

// The status of a rank shows the wait for its latest collective.
func TestUnpublishWaitKeepsOtherWaits(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	g := &pair.planes[0].Group
	status := &g.ownBlock.status
	checkCollective := func(when string, want uint64) {
		t.Helper()
		if got := spin.LoadAcquire64(&status.awaitedTicket); got != want {
			t.Errorf("%s: status.awaitedTicket = %d, want %d", when, got, want)
		}
	}
	const begin = 1 // any time
	collective3 := &slowWait{collective: 3, operation: driver.AllReduce}
	exchangeWait := &slowWait{isExchange: true}
	notPublished := &slowWait{}
	g.publishWait(collective3, begin)
	g.publishWait(exchangeWait, begin)
	g.unpublishWait(notPublished)
	g.unpublishWait(exchangeWait)
	checkCollective("after the exchange", 3)
	if n := spin.LoadAcquire64(&status.awaitedStep); n != 0 {
		t.Errorf("after the exchange: status.awaitedStep = %d, want 0", n)
	}

	collective7 := &slowWait{collective: 7, operation: driver.AllGather}
	collective5 := &slowWait{collective: 5}
	g.publishWait(collective7, begin)
	g.publishWait(collective5, begin)
	checkCollective("with waits for 3, 5 and 7", 7)
	operation := driver.Operation(spin.LoadAcquire64(&status.operation))
	if operation != driver.AllGather {
		t.Errorf("with waits for 3, 5 and 7: status.operation = %v, want AllGather", operation)
	}

	g.unpublishWait(collective5)
	g.unpublishWait(collective7)
	checkCollective("with a wait for 3", 3)
	g.unpublishWait(collective3)
	checkCollective("without waits", 0)
}

// A rank that arrives before the wait checks it is not late, even if the context has ended.
func TestWaitSucceedsIfRankArrivesAsContextEnds(t *testing.T) {
	for _, ctxErr := range []error{context.DeadlineExceeded, context.Canceled} {
		pair := newRankPair(t)
		pair.join()
		arrived := false
		ctx := endedContext{
			Context: t.Context(),
			onErr:   func() { arrived = true },
			err:     ctxErr,
		}
		err := pair.planes[0].checkWait(ctx, &slowWait{
			awaited:  []int{1},
			isReady:  func() bool { return arrived },
			begin:    sys.Monotonic(),
			timeout:  time.Hour, // does not end the wait
			callText: func() string { return "waiting" },
		})
		if err != nil {
			t.Errorf("checkWait with a context that ended with %q = %v, want nil", ctxErr, err)
		}
	}
}

// The failure of a rank may end calls of other ranks. rankStates then reads all states again.
func TestStatesAreRereadAfterFailure(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	g := &pair.planes[0].Group
	readings := 0
	isReady := func() bool { // called once per reading
		readings++
		if readings == 1 {
			atomic.StoreUint32(&g.blocks[1].wakeup.failed, uint32(control.FailedAfterPeer))
		}

		return false
	}
	states := g.rankStates(&slowWait{awaited: []int{1}, isReady: isReady})
	if readings != 2 {
		t.Errorf("got %d readings, want 2", readings)
	}

	if got := states[1].Failed; got != control.FailedAfterPeer {
		t.Errorf("rank 1 has failed for reason %v, want %v", got, control.FailedAfterPeer)
	}
}
