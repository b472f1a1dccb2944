package nccl

import (
	"sync"

	"symmem/driver/nccl/kernels"
)

// history knows the latest calls of a group, so that faults find theirs. The zero value is ready.
type history struct {
	mu sync.Mutex
	// tickets holds the call of each ticket at ticket % remembered, kernels the n-th launch of
	// a kernel, from 1, at n % remembered. Both are guarded by mu, as is launches, the number
	// of those.
	tickets, kernels [remembered]launched
	launches         uint64
}

// launched is a plan that was launched under a ticket, or 0 in a capture of another library.
type launched struct {
	plan   *plan
	ticket uint64
}

// remembered is how many calls back are known, a power of two.
const remembered = 256

// note remembers a launch.
func (h *history) note(p *plan, ticket uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ticket != 0 {
		h.tickets[ticket%remembered] = launched{p, ticket}
	}
	if p.kernel != nil {
		h.launches++
		h.kernels[h.launches%remembered] = launched{p, ticket}
	}
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
