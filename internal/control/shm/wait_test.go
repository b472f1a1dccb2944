package shm

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// TestLongWaitSleepsAndIsWoken lets rank 1 wait until it sleeps. Rank 0 then makes the same call,
// which must wake rank 1.
func TestLongWaitSleepsAndIsWoken(t *testing.T) {
	waits := map[string]func(p *plane) error{
		"in a comparison": func(p *plane) error {
			return p.Compare(p.Submit(), &driver.Call{Operation: driver.Barrier})
		},
		"in an exchange": func(p *plane) error {
			_, err := p.Exchange(t.Context(), driver.LaneControl, nil)
			return err
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			d := newRankPair(t)
			d.join()
			errs := d.runOnBoth(func(rank int) error {
				for rank == 0 && !d.planes[0].IsAsleep(1) {
					runtime.Gosched()
				}
				return wait(d.planes[rank])
			})
			check(t, errs[0])
			check(t, errs[1])
			if n := atomic.LoadInt32(&d.planes[1].ownBlock.wakeup.sleeping); n != 0 {
				t.Errorf("wakeup.sleeping = %d after the wait, want 0", n)
			}
		})
	}
}

func TestOnlySleepersAreWoken(t *testing.T) {
	d := newRankPair(t)
	d.join()
	wakeup := &d.planes[1].ownBlock.wakeup
	waker := &d.planes[0].Group
	before := atomic.LoadUint32(&wakeup.word)
	waker.wakeSleepers()
	if after := atomic.LoadUint32(&wakeup.word); after != before {
		t.Errorf("wakeSleepers woke a rank that was not asleep %d times, want 0", after-before)
	}
	atomic.AddInt32(&wakeup.sleeping, 1)
	waker.wakeSleepers()
	atomic.AddInt32(&wakeup.sleeping, -1)
	if after := atomic.LoadUint32(&wakeup.word); after != before+1 {
		t.Errorf("wakeSleepers woke a sleeping rank %d times, want once", after-before)
	}
}

func TestRankIsMissingUntilItPostsTheStep(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	g.step++ // rank 0 begins a step that rank 1 has not posted
	if n := g.countMissing(g.otherBlocks); n != 1 {
		t.Errorf("countMissing = %d before the other rank posts, want 1", n)
	}
	spin.StoreRelease64(&g.otherBlocks[0].lines[g.step&1].step, g.step)
	if n := g.countMissing(g.otherBlocks); n != 0 {
		t.Errorf("countMissing = %d after the other rank has posted, want 0", n)
	}
}

func TestBriefWaitIsBounded(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	g.step++                       // rank 0 begins a step that rank 1 has not posted
	g.budget.briefYields = 1 << 40 // only briefTime limits the wait
	for _, poll := range []bool{false, true} {
		if g.awaitBriefly(g.otherBlocks, poll) {
			t.Errorf("awaitBriefly(poll=%v) = true for a step that the other rank has not posted", poll)
		}
	}
}

// TestPollLongerEndsWithContext uses a context that has ended. The first call of its Err method
// writes the awaited word, so that PollLonger would return true if it polled again.
func TestPollLongerEndsWithContext(t *testing.T) {
	d := newRankPair(t)
	d.join()
	var word uint64
	ctx := endedContext{
		t.Context(), func() { spin.StoreRelease64(&word, 1) }, context.Canceled,
	}
	if d.planes[0].Group.PollLonger(ctx, &word, 1) {
		t.Error("PollLonger polled after the context had ended")
	}
	if word != 1 {
		t.Error("PollLonger did not check whether the context had ended")
	}
}

func TestUnpublishWaitKeepsOtherWaits(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	status := &g.ownBlock.status
	checkCollective := func(when string, want uint64) {
		t.Helper()
		if got := spin.LoadAcquire64(&status.inCollective); got != want {
			t.Errorf("%s: status.inCollective = %d, want %d", when, got, want)
		}
	}
	const begin = 1 // when the waits begin; any time will do
	collective3 := &slowWait{collective: 3, operation: driver.AllReduce}
	exchange := &slowWait{isExchange: true}
	g.publishWait(collective3, begin)
	g.publishWait(exchange, begin)
	g.unpublishWait(&slowWait{})
	g.unpublishWait(exchange)
	checkCollective("after the exchange", 3)
	if n := spin.LoadAcquire64(&status.inExchange); n != 0 {
		t.Errorf("after the exchange: status.inExchange = %d, want 0", n)
	}
	collective7 := &slowWait{collective: 7, operation: driver.AllGather}
	collective5 := &slowWait{collective: 5}
	g.publishWait(collective7, begin)
	g.publishWait(collective5, begin)
	checkCollective("with 3 waits", 7)
	operation := driver.Operation(spin.LoadAcquire64(&status.operation))
	if operation != driver.AllGather {
		t.Errorf("with 3 waits: status.operation = %v, want AllGather", operation)
	}
	g.unpublishWait(collective5)
	g.unpublishWait(collective7)
	checkCollective("with 1 wait", 3)
	g.unpublishWait(collective3)
	checkCollective("without waits", 0)
}

// endedContext is a context with a given error. Its Err method first calls onErr, which can change
// what the caller of Err sees next.
type endedContext struct {
	context.Context
	onErr func()
	err   error
}

func (c endedContext) Err() error {
	c.onErr()
	return c.err
}

func TestWaitSucceedsIfRankArrivesAsContextEnds(t *testing.T) {
	for _, ctxErr := range []error{context.DeadlineExceeded, context.Canceled} {
		d := newRankPair(t)
		d.join()
		arrived := false
		ctx := endedContext{t.Context(), func() { arrived = true }, ctxErr}
		err := d.planes[0].checkWait(ctx, &slowWait{
			awaited: []int{1}, isReady: func() bool { return arrived }, begin: sys.Monotonic(),
			timeout: time.Hour, callText: func() string { return "waiting" },
		})
		if err != nil {
			t.Errorf("checkWait with a context that ended with %q = %v, want nil", ctxErr, err)
		}
	}
}

// TestStatesAreRereadAfterFailure makes rank 1 fail while rankStates reads the states for the
// first time.
func TestStatesAreRereadAfterFailure(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	readings := 0
	states := g.rankStates(&slowWait{awaited: []int{1}, isReady: func() bool {
		readings++
		if readings == 1 {
			atomic.StoreUint32(&g.blocks[1].wakeup.failed, uint32(control.FailedAfterPeer))
		}
		return false
	}})
	if readings != 2 || states[1].Failed != control.FailedAfterPeer {
		t.Errorf("after %d readings, rank 1 has failed with reason %v; want 2 readings and reason %v",
			readings, states[1].Failed, control.FailedAfterPeer)
	}
}
