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

// Most tests in this file use newRankPair: two ranks in this process, whose planes are connected by
// join. A plane lets the ranks of a group exchange data in steps, through memory that they share.
// Each rank has a block of this memory. In d.planes[0], blocks[1] and otherBlocks[0] are that of
// rank 1.

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
				// Rank 0 is late: it makes the call only when rank 1 sleeps.
				for rank == 0 && !d.planes[0].IsAsleep(1) {
					if d.ctx.Err() != nil {
						return errors.New("rank 1 has not begun to sleep before the deadline")
					}

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

// Rank 0 wakes rank 1 by adding 1 to a word of memory that both share. This costs a system call, so
// rank 0 must do it only if rank 1 sleeps. The test counts the changes of the word.
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

	atomic.AddInt32(&wakeup.sleeping, 1) // as if rank 1 slept
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

	// A rank posts a step in one of two lines of its block, by turns.
	line := &g.otherBlocks[0].lines[g.step%2]
	spin.StoreRelease64(&line.step, g.step)
	if n := g.countMissing(g.otherBlocks); n != 0 {
		t.Errorf("countMissing = %d after the other rank has posted, want 0", n)
	}
}

// A brief wait blocks the caller's thread. It must give up although the other rank never posts.
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
	const want = 1
	var word uint64
	ctx := endedContext{
		Context: t.Context(),
		onErr:   func() { spin.StoreRelease64(&word, want) },
		err:     context.Canceled,
	}
	if d.planes[0].Group.PollLonger(ctx, &word, want) {
		t.Error("PollLonger polled after the context had ended")
	}

	if word != want {
		t.Error("PollLonger did not check whether the context had ended")
	}
}

// A rank publishes in its status where it waits, for the reports of other ranks. If several of its
// goroutines wait, it publishes the collective of the highest number. A wait that ends must reveal
// the next one.
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
	g.unpublishWait(&slowWait{}) // was not published, so this has no effect
	g.unpublishWait(exchange)
	checkCollective("after the exchange", 3)
	if n := spin.LoadAcquire64(&status.inExchange); n != 0 {
		t.Errorf("after the exchange: status.inExchange = %d, want 0", n)
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

// Rank 1 arrives when the wait asks the context whether it has ended. The wait must then succeed,
// although the context has ended: this process may only have been stopped for a while.
func TestWaitSucceedsIfRankArrivesAsContextEnds(t *testing.T) {
	for _, ctxErr := range []error{context.DeadlineExceeded, context.Canceled} {
		d := newRankPair(t)
		d.join()
		arrived := false
		ctx := endedContext{
			Context: t.Context(),
			onErr:   func() { arrived = true },
			err:     ctxErr,
		}
		err := d.planes[0].checkWait(ctx, &slowWait{
			awaited:  []int{1},
			isReady:  func() bool { return arrived },
			begin:    sys.Monotonic(),
			timeout:  time.Hour, // so that only the context can end the wait
			callText: func() string { return "waiting" },
		})
		if err != nil {
			t.Errorf("checkWait with a context that ended with %q = %v, want nil", ctxErr, err)
		}
	}
}

// TestStatesAreRereadAfterFailure makes rank 1 fail while rankStates reads the states for the
// first time. It must read them again, because the failure may have ended calls of other ranks.
func TestStatesAreRereadAfterFailure(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	readings := 0
	failInFirstReading := func() bool { // rankStates calls it once in each reading
		readings++
		if readings == 1 {
			atomic.StoreUint32(&g.blocks[1].wakeup.failed, uint32(control.FailedAfterPeer))
		}

		return false
	}
	states := g.rankStates(&slowWait{awaited: []int{1}, isReady: failInFirstReading})
	if readings != 2 {
		t.Errorf("got %d readings, want 2", readings)
	}

	if got := states[1].Failed; got != control.FailedAfterPeer {
		t.Errorf("rank 1 has failed for reason %v, want %v", got, control.FailedAfterPeer)
	}
}
