package nccl

import (
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/spin"
)

// history knows what a group has launched: how much, and the latest calls, so that faults find
// theirs. Each launch notes itself, so that one lock is all that it costs. The zero value is ready.
type history struct {
	mu spin.Lock
	// ticket is that of the last collective, operation what it does, or a message since then. Both
	// are guarded by mu, as are counts, of calls by their path.
	ticket    uint64
	operation driver.Operation
	counts    [driver.Paths]uint64
	// tickets holds the call of each ticket at ticket % remembered, kernels the n-th launch of
	// a kernel, from 1, at n % remembered. Both are guarded by mu, as is launches, the number
	// of those.
	launches         uint64
	tickets, kernels [remembered]launched
}

// launched is a plan that was launched under a ticket, or 0 in a capture of another library.
type launched struct {
	plan   *plan
	ticket uint64
}

// remembered is how many calls back are known, a power of two.
const remembered = 256

// note remembers the launch of a collective. Ticket 0 is a call in a capture of another library.
func (h *history) note(p *plan, ticket uint64) {
	h.mu.Lock()
	h.counts[p.Path]++
	if ticket != 0 {
		h.ticket, h.operation = ticket, p.Operation
		h.tickets[ticket%remembered] = launched{p, ticket}
	}
	if p.kernel != nil {
		h.launches++
		h.kernels[h.launches%remembered] = launched{p, ticket}
	}
	h.mu.Unlock()
}

// message remembers one end of a message, which comes after the last collective, and returns the
// ticket of that.
func (h *history) message(p *plan) (ticket uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[p.Path]++
	h.operation = p.Operation
	return h.ticket
}

// reach notes a ticket that is compared, for a call in a capture of another library.
func (h *history) reach(ticket uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticket = ticket
}

// latest returns the ticket of the last collective, and what it or a message behind it does.
func (h *history) latest() (ticket uint64, operation driver.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ticket, h.operation
}

// launched counts the calls by their path.
func (h *history) launched() [driver.Paths]uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// of returns the plan of a ticket, or nil.
func (h *history) of(ticket uint64) *plan {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := h.tickets[ticket%remembered]; at.ticket == ticket {
		return at.plan
	}
	return nil
}

// culprit finds the call of a report and its ticket. Kernels count calls, and so does this
// rank; only if another library replays captures they do not agree, and the digest has to do.
func (h *history) culprit(report *kernels.Report) (p *plan, ticket uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.kernels[report.Epoch%remembered]
	if at.plan != nil && at.plan.Digest == report.Digest && at.ticket != 0 {
		return at.plan, at.ticket
	}
	for _, l := range h.kernels {
		if l.plan != nil && l.plan.Digest == report.Digest {
			return l.plan, report.Epoch
		}
	}
	return &plan{}, report.Epoch
}
