package host

import (
	"sync"
	"sync/atomic"
	"time"

	"symmem/internal/spin"
)

// turns makes the collectives of a communicator run one at a time, in the order of the tickets
// (numbers) that Launch assigns.
type turns struct {
	waiterCount   atomic.Int32
	lastCompleted atomic.Uint64 // last completed ticket
	mu            sync.Locker   // Group.Mu
	passed        chan struct{} // replaced when closed, to wake waiters; guarded by mu
}

func (t *turns) isTurn(ticket uint64) bool { return t.lastCompleted.Load() == ticket-1 }

// endTurn uses a plain store, because a locked instruction would stall until this rank's last post
// has reached the other ranks. A waiter may therefore miss the wake-up and notice the change up to
// turnSlice later.
func (t *turns) endTurn(ticket uint64) {
	spin.Publish64(&t.lastCompleted, ticket)
	if t.waiterCount.Load() != 0 {
		t.wakeWaiters()
	}
}

func (t *turns) wakeWaiters() {
	t.mu.Lock()
	close(t.passed)
	t.passed = make(chan struct{})
	t.mu.Unlock()
}

// turnSlice is the interval at which waiters poll.
const turnSlice = time.Millisecond

func (t *turns) waitForTurn(ticket uint64) { t.waitForTurnUntil(ticket, nil) }

func (t *turns) waitForTurnUntil(ticket uint64, done <-chan struct{}) bool {
	t.waiterCount.Add(1)
	defer t.waiterCount.Add(-1)
	timer := time.NewTicker(turnSlice)
	defer timer.Stop()
	for {
		t.mu.Lock()
		passed := t.passed
		t.mu.Unlock()
		if t.isTurn(ticket) {
			return true
		}

		select {
		case <-passed:
		case <-timer.C:
		case <-done:
			return false
		}
	}
}
