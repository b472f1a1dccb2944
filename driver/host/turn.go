package host

import (
	"sync"
	"sync/atomic"
	"time"

	"symmem/internal/spin"
)

// turns makes the collectives of a communicator run one at a time, in the order of their tickets,
// the numbers that Launch assigns to them.
type turns struct {
	waiters   atomic.Int32
	completed atomic.Uint64 // last completed ticket
	mu        sync.Locker   // Group.Mu
	// passed is closed and replaced when completed changes while calls wait. It is guarded by mu.
	passed chan struct{}
}

func (t *turns) reached(ticket uint64) bool { return t.completed.Load() == ticket-1 }

// pass ends a ticket's turn. It uses a plain store, because a locked instruction would stall until
// this rank's last post has reached the other ranks. A waiter may therefore miss the wake-up, and
// notices the change up to turnSlice later.
func (t *turns) pass(ticket uint64) {
	spin.Publish64(&t.completed, ticket)
	if t.waiters.Load() != 0 {
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

func (t *turns) await(ticket uint64) { t.awaitUntil(ticket, nil) }

// awaitUntil waits for a ticket's turn or until done is closed. It reports whether the ticket's
// turn has come.
func (t *turns) awaitUntil(ticket uint64, done <-chan struct{}) bool {
	t.waiters.Add(1)
	defer t.waiters.Add(-1)
	timer := time.NewTicker(turnSlice)
	defer timer.Stop()
	for {
		t.mu.Lock()
		passed := t.passed
		t.mu.Unlock()
		if t.reached(ticket) {
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
