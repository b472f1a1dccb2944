package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// history knows what a group has launched: how much, and the latest calls, so that faults find
// theirs. Each launch notes itself. The zero value is ready.
//
// Writers hold the lock of the communicator, so there is one at a time. Readers may not wait for
// that lock, which a launch holds as long as NCCL makes it wait. So a ticket's call is stored first
// and latest after it: a reader takes the call, and believes it if its place was not to be written
// anew up to then.
type history struct {
	// latest is the ticket of the last collective, above operationBits of what it does, or a
	// message since then.
	latest atomic.Uint64
	// counts are those of calls, by their path.
	counts [driver.Paths]atomic.Uint64
	// tickets holds the call of each ticket at ticket % remembered, or nil if it has none.
	tickets [remembered]atomic.Pointer[driver.Call]

	launches direct.Launches
}

// operationBits is the number of bits of latest that hold an operation.
const operationBits = 8

// remembered is the number of the latest calls that are known, a power of two.
const remembered = 256

// note remembers the launch of a collective. Meetings is the number of its kernels of our own that
// meet the other ranks. Ticket 0 is a call in a capture of another library. The communicator's lock
// is held.
func (h *history) note(p *driver.Call, ticket uint64, meetings int) {
	spin.Publish64(&h.counts[p.Path], h.counts[p.Path].Load()+1)
	if ticket != 0 {
		spin.Publish(&h.tickets[ticket%remembered], p)
		spin.Publish64(&h.latest, ticket<<operationBits|uint64(p.Operation))
	}
	switch {
	case meetings == 0:
	case ticket == 0:
		h.launches.Record(p)
	default:
		h.launches.Note(p, ticket, meetings)
	}
}

// message remembers one end of a message, which comes after the last collective, and returns the
// ticket of that. The communicator's lock is held.
func (h *history) message(p *driver.Call) (ticket uint64) {
	ticket, _ = h.last()
	h.counts[p.Path].Add(1)
	h.latest.Store(ticket<<operationBits | uint64(p.Operation))
	return ticket
}

// reach notes a ticket that is compared, for a call in a capture of another library. The
// communicator's lock is held.
func (h *history) reach(ticket uint64) {
	_, operation := h.last()
	h.tickets[ticket%remembered].Store(nil)
	h.latest.Store(ticket<<operationBits | uint64(operation))
}

// last returns the ticket of the last collective, and what it or a message behind it does.
func (h *history) last() (ticket uint64, operation driver.Operation) {
	l := h.latest.Load()
	return l >> operationBits, driver.Operation(l & (1<<operationBits - 1))
}

// launched counts the calls by their path.
func (h *history) launched() (counts [driver.Paths]uint64) {
	for path := range counts {
		counts[path] = h.counts[path].Load()
	}
	return counts
}

// of returns the call of a ticket, or nil.
func (h *history) of(ticket uint64) *driver.Call {
	if last, _ := h.last(); ticket == 0 || ticket > last {
		return nil
	}
	p := h.tickets[ticket%remembered].Load()
	// The ticket that takes its place next is written when the one before that is the last.
	if last, _ := h.last(); last-ticket >= remembered-1 {
		return nil
	}
	return p
}
