package nccl

import (
	"math/rand/v2"
	"sync"
	"testing"

	"symmem/driver"
)

// A history stores the last historySize (256) collectives of a group. The ticket of a collective is
// its number, from 1. For example, after the tickets 1 to 512, callOf(512) returns the last
// collective, callOf(1) returns nil, because it has been overwritten, and callOf(513) returns nil,
// because no collective has this ticket yet.

// newNumberedCall returns a call whose Count is its ticket, so that tests can recognize it.
func newNumberedCall(operation driver.Operation, path driver.Path, ticket uint64) *driver.Call {
	return &driver.Call{Operation: operation, Path: path, Count: int64(ticket)}
}

// TestHistoryConcurrentReads checks that callOf never returns the call of another ticket while
// calls are recorded.
func TestHistoryConcurrentReads(t *testing.T) {
	const calls = 20 * historySize // each place in the history is overwritten 19 times
	const readers = 2
	var h history
	var running sync.WaitGroup // the readers
	for seed := range uint64(readers) {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for last := uint64(0); last < calls; {
				last, _ = h.lastCall()
				ticket := r.Uint64N(last + 2) // up to last+1, which may have no call yet
				call := h.callOf(ticket)
				isWrong := call != nil && call.Count != int64(ticket)
				if isWrong {
					t.Errorf("seed %d: callOf(%d) returned the call of ticket %d", seed, ticket, call.Count)
					return
				}
			}
		})
	}

	for ticket := uint64(1); ticket <= calls; ticket++ {
		const exchangeKernelCount = 0
		h.recordCollective(newNumberedCall(driver.AllReduce, driver.PathPlain, ticket), ticket,
			exchangeKernelCount)
	}

	running.Wait()
}

// TestHistory records more calls than a history stores. The subtests run in order: some record
// something, which those after them expect.
func TestHistory(t *testing.T) {
	const last = 2 * historySize // the last ticket with a call
	// callOf returns only the last historySize-1 calls. The call before them is still stored, but a
	// concurrent writer could be about to replace it.
	const oldest = last - historySize + 2
	var h history
	checkFound := func(t *testing.T, ticket uint64, wantFound bool) {
		t.Helper()
		call := h.callOf(ticket)
		found := call != nil
		if found != wantFound {
			t.Errorf("callOf(%d) returned a call: %t, want %t", ticket, found, wantFound)
		}

		if found && call.Count != int64(ticket) {
			t.Errorf("callOf(%d) returned the call of ticket %d", ticket, call.Count)
		}
	}
	for ticket := uint64(1); ticket <= last; ticket++ {
		const exchangeKernelCount = 0
		h.recordCollective(newNumberedCall(driver.Broadcast, driver.PathWindow, ticket), ticket,
			exchangeKernelCount)
	}

	t.Run("latest tickets", func(t *testing.T) {
		checkFound(t, last, true)
		checkFound(t, oldest, true)
	})
	t.Run("old and future tickets", func(t *testing.T) {
		checkFound(t, 0, false)
		checkFound(t, 1, false)
		checkFound(t, last-historySize, false)
		checkFound(t, last+1, false)
	})
	t.Run("ticket without a call", func(t *testing.T) {
		h.recordComparison(last + 1)
		checkFound(t, last+1, false)
		checkFound(t, last, true)
	})
	t.Run("message after the last ticket", func(t *testing.T) {
		ticket := h.recordMessage(&driver.Call{Operation: driver.Send, Path: driver.PathPlain})
		lastTicket, operation := h.lastCall()
		if ticket != last+1 {
			t.Errorf("recordMessage() = %d, want %d, the ticket of the comparison", ticket, last+1)
		}

		if lastTicket != last+1 || operation != driver.Send {
			t.Errorf("after a Send, lastCall() = %d, %v; want %d, Send", lastTicket, operation, last+1)
		}
	})
	t.Run("counts", func(t *testing.T) {
		counts := h.callCountsByPath()
		if counts[driver.PathWindow] != last || counts[driver.PathPlain] != 1 {
			t.Errorf("callCountsByPath() = %v, want %d window calls and 1 plain call", counts, last)
		}
	})
}
