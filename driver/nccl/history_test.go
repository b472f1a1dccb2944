package nccl

import (
	"math/rand/v2"
	"sync"
	"testing"

	"symmem/driver"
)

// A history is a ring buffer of a group's last collectives. A collective's ticket is its sequence
// number, from 1.

// newNumberedCall returns a call whose Count is its ticket.
func newNumberedCall(operation driver.Operation, path driver.Path, ticket uint64) *driver.Call {
	return &driver.Call{Operation: operation, Path: path, Count: int64(ticket)}
}

// callOf never returns the call of another ticket, even while calls are recorded.
func TestHistoryConcurrentReads(t *testing.T) {
	const calls = 20 * historySize
	const readers = 2
	var h history
	var running sync.WaitGroup
	for seed := range uint64(readers) {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for last := uint64(0); last < calls; {
				last, _ = h.lastCall()
				maxTicket := last + 1 // may have no call yet
				ticket := r.Uint64N(maxTicket + 1)
				call := h.callOf(ticket)
				if call != nil && call.Count != int64(ticket) {
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

// The subtests depend on each other's records, so they run in order.
func TestHistory(t *testing.T) {
	const last = 2 * historySize     // the last ticket with a call
	const readable = historySize - 1 // one slot may be in use by a writer
	const oldest = last - readable + 1
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
