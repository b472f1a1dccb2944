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

// The ranks of a group exchange data in steps, through memory that they share. Each rank has a
// block of this memory. To take part in step 5, a rank writes its data into its block, which is
// called posting the step, and then waits until the others have posted step 5.
//
// A rank that waits for long sleeps. A rank that posts must then wake it, by adding 1 to a word in
// the block of the sleeper.
//
// Most tests use newRankPair: two ranks in this process, whose planes are connected by join. In
// d.planes[0], which is the view of rank 0, blocks[1] and otherBlocks[0] are the block of rank 1.

// awaitSleep waits until rank 1 sleeps. It returns an error if rank 1 does not in time.
func (d *rankPair) awaitSleep() error {
	for !d.planes[0].IsAsleep(1) {
		if d.ctx.Err() != nil {
			return errors.New("rank 1 has not begun to sleep before the deadline")
		}

		runtime.Gosched()
	}

	return nil
}

// TestLongWaitSleepsAndIsWoken lets rank 1 wait until it sleeps. Rank 0 then makes the same call,
// which must wake rank 1.
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
			d := newRankPair(t)
			d.join()
			errs := d.runOnBoth(func(rank int) error {
				if rank == 0 {
					if err := d.awaitSleep(); err != nil {
						return err
					}
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

// To wake a rank costs a system call, so rank 0 must do it only if rank 1 sleeps. The test compares
// the word that rank 0 increments for this purpose, before and after.
func TestOnlySleepersAreWoken(t *testing.T) {
	d := newRankPair(t)
	d.join()
	wakeup := &d.planes[1].ownBlock.wakeup
	rank0 := &d.planes[0].Group
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
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	g.step++ // rank 0 begins a step that rank 1 has not posted
	if n := g.countMissing(g.otherBlocks); n != 1 {
		t.Errorf("countMissing = %d before the other rank posts, want 1", n)
	}

	// A rank posts odd and even steps in different lines of its block.
	line := &g.otherBlocks[0].lines[g.step%2]
	spin.StoreRelease64(&line.step, g.step) // as if rank 1 posted the step
	if n := g.countMissing(g.otherBlocks); n != 0 {
		t.Errorf("countMissing = %d after the other rank has posted, want 0", n)
	}
}

// A brief wait blocks the caller's thread, so it must give up after a short time. The other rank
// does not post in this test. If poll is true, awaitBriefly also polls before it yields.
func TestBriefWaitIsBounded(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	g.step++                       // rank 0 begins a step that rank 1 has not posted
	g.budget.briefYields = 1 << 40 // only briefTime limits the wait
	for _, poll := range []bool{false, true} {
		hasPosted := g.awaitBriefly(g.otherBlocks, poll)
		if hasPosted {
			t.Errorf("awaitBriefly with poll %v = true for a step that was not posted, want false", poll)
		}
	}
}

// endedContext is a context that has ended with err. Its Err method first calls onErr, with which a
// test changes the awaited value while the code under test checks the context.
type endedContext struct {
	context.Context
	onErr func()
	err   error
}

func (c endedContext) Err() error {
	c.onErr()
	return c.err
}

// PollLonger waits for a word to contain a value. It must return false when it finds that its
// context has ended. This context's Err writes the value to the word, so PollLonger would return
// true if it polled once more.
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
	hasFound := d.planes[0].Group.PollLonger(ctx, &word, want)
	if hasFound {
		t.Error("PollLonger polled after the context had ended, want no more polls")
	}

	hasCheckedContext := word == want
	if !hasCheckedContext {
		t.Error("PollLonger did not check whether the context had ended, want a check")
	}
}

// A rank publishes in its status where it waits, so that other ranks can report it. The collectives
// of a group are numbered. If several goroutines of the rank wait in collectives, the status has
// the highest number. When that wait ends, the status must show another one that has not ended.
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
	notPublished := &slowWait{}
	g.publishWait(collective3, begin)
	g.publishWait(exchange, begin)
	g.unpublishWait(notPublished) // has no effect
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

// The context has ended, but rank 1 arrives while the wait checks the context. The wait must
// succeed: the context may have ended only because this process was stopped for a while.
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

// rankStates reads the states of all ranks for a report. Rank 1 fails while it reads them for the
// first time. It must read them again, because the failure may have ended calls of other ranks.
func TestStatesAreRereadAfterFailure(t *testing.T) {
	d := newRankPair(t)
	d.join()
	g := &d.planes[0].Group
	readings := 0
	isReady := func() bool { // rankStates calls it once in each reading
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
