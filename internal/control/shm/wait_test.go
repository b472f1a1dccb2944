package shm

import (
	"runtime"
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
)

// TestLongWaitSleepsAndIsWoken lets rank 1 wait until its wakeup counts a sleeper, and only then
// lets rank 0 arrive.
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
	for row, wait := range waits {
		t.Run(row, func(t *testing.T) {
			d := newDuo(t)
			d.join()
			for _, err := range d.both(func(rank int) error {
				for rank == 0 && !d.planes[0].Asleep(1) {
					runtime.Gosched()
				}
				return wait(d.planes[rank])
			}) {
				check(t, err)
			}
			if n := atomic.LoadInt32(&d.planes[1].me.wakeup.sleeping); n != 0 {
				t.Errorf("wakeup counts %d sleeping threads", n)
			}
		})
	}
}

// TestOnlySleepersAreWoken counts the increments of a futex word.
func TestOnlySleepersAreWoken(t *testing.T) {
	d := newDuo(t)
	d.join()
	wakeup := &d.planes[1].me.wakeup
	ringer := &d.planes[0].Group
	before := atomic.LoadUint32(&wakeup.word)
	ringer.wakeSleepers()
	if after := atomic.LoadUint32(&wakeup.word); after != before {
		t.Errorf("a rank that does not sleep was woken %d times", after-before)
	}
	atomic.AddInt32(&wakeup.sleeping, 1)
	ringer.wakeSleepers()
	atomic.AddInt32(&wakeup.sleeping, -1)
	if after := atomic.LoadUint32(&wakeup.word); after != before+1 {
		t.Errorf("a sleeper was woken %d times, want once", after-before)
	}
}

func TestRankIsAbsentUntilItPostsTheStep(t *testing.T) {
	d := newDuo(t)
	d.join()
	g := &d.planes[0].Group
	g.step++
	if n := g.absent(g.others); n != 1 {
		t.Errorf("%d ranks are absent before the only other one posts", n)
	}
	spin.StoreRelease64(&g.others[0].lines[g.step&1].step, g.step)
	if n := g.absent(g.others); n != 0 {
		t.Errorf("%d ranks are absent after the only other one has posted", n)
	}
}

// TestBriefWaitIsBounded also tests yields that take very long.
func TestBriefWaitIsBounded(t *testing.T) {
	d := newDuo(t)
	d.join()
	g := &d.planes[0].Group
	g.step++
	g.budget.briefYields = 1 << 40
	for _, poll := range []bool{false, true} {
		if g.awaitBriefly(g.others, poll) {
			t.Errorf("a step arrived that no rank has posted, polled: %v", poll)
		}
	}
}

func TestUnpublishRemovesOnlyItsWait(t *testing.T) {
	d := newDuo(t)
	d.join()
	g := &d.planes[0].Group
	collective := &waiting{collective: 3, operation: driver.AllReduce}
	exchange := &waiting{exchange: true}
	g.publishWait(collective, 1)
	g.publishWait(exchange, 2)
	g.unpublishWait(&waiting{})
	g.unpublishWait(exchange)
	status := &g.me.status
	if n := spin.LoadAcquire64(&status.inCollective); n != 3 {
		t.Errorf("the status has collective %d, want 3", n)
	}
	if n := spin.LoadAcquire64(&status.inExchange); n != 0 {
		t.Errorf("the status has exchange %d, want none", n)
	}
	later := &waiting{collective: 7, operation: driver.AllGather}
	middle := &waiting{collective: 5}
	g.publishWait(later, 5)
	g.publishWait(middle, 6)
	n, o := spin.LoadAcquire64(&status.inCollective), spin.LoadAcquire64(&status.operation)
	if n != 7 || driver.Operation(o) != driver.AllGather {
		t.Errorf("the status has %v %d, want the last of three", driver.Operation(o), n)
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

// TestStatesAreReadAgainAfterAFailure has a rank fail after the first reading of its state.
func TestStatesAreReadAgainAfterAFailure(t *testing.T) {
	d := newDuo(t)
	d.join()
	g := &d.planes[0].Group
	readings := 0
	states := g.rankStates(&waiting{from: []int{1}, ready: func() bool {
		if readings++; readings == 1 {
			atomic.StoreUint32(&g.blocks[1].wakeup.failed, uint32(control.FailedAfterPeer))
		}
		return false
	}})
	if readings != 2 || states[1].Failed != control.FailedAfterPeer {
		t.Errorf("after %d readings rank 1 has the reason %v; want 2 readings, and %v",
			readings, states[1].Failed, control.FailedAfterPeer)
	}
}
