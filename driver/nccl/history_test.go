package nccl

import (
	"math/rand/v2"
	"sync"
	"testing"

	"symmem/driver"
)

// TestHistoryConcurrentReads looks up calls while others are recorded. The Count of a call is its
// ticket.
func TestHistoryConcurrentReads(t *testing.T) {
	const calls, readers = 20 * historySize, 2
	var h history
	var group sync.WaitGroup
	for seed := range uint64(readers) {
		group.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for last := uint64(0); last < calls; {
				last, _ = h.lastCall()
				ticket := r.Uint64N(last + 2)
				if p := h.callOf(ticket); p != nil && p.Count != int64(ticket) {
					t.Errorf("seed %d: callOf(%d) returned the call of ticket %d", seed, ticket, p.Count)
					return
				}
			}
		})
	}
	for ticket := uint64(1); ticket <= calls; ticket++ {
		p := &driver.Call{}
		p.Operation, p.Count = driver.AllReduce, int64(ticket)
		h.recordCollective(p, ticket, 0)
	}
	group.Wait()
}

func TestHistory(t *testing.T) {
	var h history
	record := func(ticket uint64) {
		p := &driver.Call{}
		p.Operation, p.Path, p.Count = driver.Broadcast, driver.PathWindow, int64(ticket)
		h.recordCollective(p, ticket, 0)
	}
	lookUp := func(t *testing.T, ticket uint64) bool {
		t.Helper()
		p := h.callOf(ticket)
		if p != nil && p.Count != int64(ticket) {
			t.Errorf("callOf(%d) returned the call of ticket %d", ticket, p.Count)
		}
		return p != nil
	}
	for ticket := range uint64(2 * historySize) {
		record(ticket + 1)
	}
	t.Run("latest tickets", func(t *testing.T) {
		if !lookUp(t, 2*historySize) || !lookUp(t, historySize+2) {
			t.Error("callOf did not find a recent call")
		}
	})
	t.Run("old and future tickets", func(t *testing.T) {
		if lookUp(t, 0) || lookUp(t, 1) || lookUp(t, historySize) || lookUp(t, 2*historySize+1) {
			t.Error("callOf found an old or future call")
		}
	})
	t.Run("ticket without a call", func(t *testing.T) {
		h.recordComparison(2*historySize + 1)
		if lookUp(t, 2*historySize+1) || !lookUp(t, 2*historySize) {
			t.Error("want callOf to return nil for the last ticket, and a call for the ticket before it")
		}
	})
	t.Run("message after the last ticket", func(t *testing.T) {
		p := &driver.Call{}
		p.Operation = driver.Send
		ticket := h.recordMessage(p)
		last, operation := h.lastCall()
		if ticket != 2*historySize+1 || last != ticket || operation != driver.Send {
			t.Errorf("after a Send, lastCall() = %d, %v; want %d, Send", last, operation, 2*historySize+1)
		}
	})
	t.Run("counts", func(t *testing.T) {
		counts := h.callCountsByPath()
		if counts[driver.PathWindow] != 2*historySize || counts[driver.PathPlain] != 1 {
			t.Errorf("callCountsByPath() = %v, want %d window calls and 1 plain call", counts, 2*historySize)
		}
	})
}
