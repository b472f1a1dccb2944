package nccl

import (
	"math/rand/v2"
	"sync"
	"testing"

	"symmem/driver"
)

// A history is a ring buffer of a group's last collectives. A collective's ticket is its sequence
// number, from 1.

// recordNumbered records a call whose Count is its ticket.
func (h *history) recordNumbered(path driver.Path, ticket uint64) {
	const exchangeKernelCount = 0
	call := &driver.Call{Operation: driver.AllReduce, Path: path, Count: int64(ticket)}
	h.recordCollective(call, ticket, exchangeKernelCount)
}

// callOf never returns the call of another ticket, even while calls are recorded.
func TestHistoryConcurrentReads(t *testing.T) {
	const calls = 20 * historySize
	const readers = 2
	var h history
	var running sync.WaitGroup
	for seed := range uint64(readers) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, 0))
			for last := uint64(0); last < calls; {
				last, _ = h.lastCall()
				next := last + 1 // may be incomplete
				ticket := random.Uint64N(next + 1)
				call := h.callOf(ticket)
				if call != nil && call.Count != int64(ticket) {
					t.Errorf("seed %d: callOf(%d) returned the call of ticket %d", seed, ticket, call.Count)
					return
				}
			}
		})
	}

	for ticket := uint64(1); ticket <= calls; ticket++ {
		h.recordNumbered(driver.PathPlain, ticket)
	}

	running.Wait()
}

// Each subtest depends on the records of the previous ones.
func TestHistory(t *testing.T) {
	const last = 2 * historySize
	const readable = historySize - 1 // a writer may be replacing one call
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
		h.recordNumbered(driver.PathWindow, ticket)
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
