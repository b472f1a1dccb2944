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
			for _, err := range d.runOnBoth(func(rank int) error {
				for rank == 0 && !d.planes[0].IsAsleep(1) {
					runtime.Gosched()
				}
				return wait(d.planes[rank])
			}) {
				check(t, err)
			}
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
		t.Errorf("wakeSleepers woke a rank that was not sleeping %d times, want 0", after-before)
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
	g.step++
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
	g.step++
	g.budget.briefYields = 1 << 40
	for _, poll := range []bool{false, true} {
		if g.awaitBriefly(g.otherBlocks, poll) {
			t.Errorf("awaitBriefly(poll=%v) = true for a step that no rank has posted", poll)
		}
	}
}

// TestPollLongerEndsWithContext lets the first check of the context post the awaited word, which a
// later poll would find.
func TestPollLongerEndsWithContext(t *testing.T) {
	d := newRankPair(t)
	d.join()
	var word uint64
	ctx := endedContext{
		t.Context(), func() { spin.StoreRelease64(&word, 1) }, context.Canceled,
	}
	if d.planes[0].Group.PollLonger(ctx, &word, 1) || word != 1 {
		t.Errorf("PollLonger polled after the context ended, or never checked it: word = %d", word)
	}
}

func TestUnpublishWaitKeepsOtherWaits(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	collective := &slowWait{collective: 3, operation: driver.AllReduce}
	exchange := &slowWait{isExchange: true}
	g.publishWait(collective, 1)
	g.publishWait(exchange, 2)
	g.unpublishWait(&slowWait{})
	g.unpublishWait(exchange)
	status := &g.ownBlock.status
	if n := spin.LoadAcquire64(&status.inCollective); n != 3 {
		t.Errorf("the status has collective %d, want 3", n)
	}
	if n := spin.LoadAcquire64(&status.inExchange); n != 0 {
		t.Errorf("status.inExchange = %d, want 0", n)
	}
	later := &slowWait{collective: 7, operation: driver.AllGather}
	middle := &slowWait{collective: 5}
	g.publishWait(later, 5)
	g.publishWait(middle, 6)
	n, o := spin.LoadAcquire64(&status.inCollective), spin.LoadAcquire64(&status.operation)
	if n != 7 || driver.Operation(o) != driver.AllGather {
		t.Errorf("the status has %v %d, want AllGather 7", driver.Operation(o), n)
	}
	g.unpublishWait(middle)
	g.unpublishWait(later)
	if n := spin.LoadAcquire64(&status.inCollective); n != 3 {
		t.Errorf("the status has collective %d, want 3 again", n)
	}
	g.unpublishWait(collective)
	if n := spin.LoadAcquire64(&status.inCollective); n != 0 {
		t.Errorf("the status has collective %d, want none", n)
	}
}

// The Err method of an endedContext calls onErr and then returns err.
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
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		d := newRankPair(t)
		d.join()
		arrived := false
		ctx := endedContext{t.Context(), func() { arrived = true }, ended}
		err := d.planes[0].checkWait(ctx, &slowWait{
			awaited: []int{1}, isReady: func() bool { return arrived }, begin: sys.Monotonic(),
			timeout: time.Hour, callText: func() string { return "waiting" },
		})
		if err != nil {
			t.Errorf("%v: got %v, want the wait to succeed", ended, err)
		}
	}
}

func TestStatesAreRereadAfterFailure(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	readings := 0
	states := g.rankStates(&slowWait{awaited: []int{1}, isReady: func() bool {
		if readings++; readings == 1 {
			atomic.StoreUint32(&g.blocks[1].wakeup.failed, uint32(control.FailedAfterPeer))
		}
		return false
	}})
	if readings != 2 || states[1].Failed != control.FailedAfterPeer {
		t.Errorf("after %d readings, rank 1 has failed with reason %v; want 2 readings and reason %v",
			readings, states[1].Failed, control.FailedAfterPeer)
	}
}
