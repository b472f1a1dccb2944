package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// history counts the launches of a group and stores its last calls. A ticket is the number of a
// collective in the group.
//
// Writers hold the communicator's lock, but readers must not wait for it. A writer stores a call
// before it updates lastTicketAndOperation. A reader checks lastTicketAndOperation again after it
// has read a call, which may have been overwritten.
type history struct {
	lastTicketAndOperation atomic.Uint64               // ticket<<operationBits | operation
	callCounts             [driver.Paths]atomic.Uint64 // by path
	// calls holds the call of a ticket at index ticket % historySize.
	calls [historySize]atomic.Pointer[driver.Call]

	launches direct.Launches
}

const operationBits = 8

const historySize = 256 // a power of two

// recordCollective gets ticket 0 if another library captures the call. exchangeKernelCount counts
// symmem's kernels that communicate with other ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	spin.Publish64(&h.callCounts[call.Path], h.callCounts[call.Path].Load()+1)
	if ticket != 0 {
		spin.Publish(&h.calls[ticket%historySize], call)
		spin.Publish64(&h.lastTicketAndOperation, ticket<<operationBits|uint64(call.Operation))
	}
	switch {
	case exchangeKernelCount == 0:
	case ticket == 0:
		h.launches.AddCaptured(call)
	default:
		h.launches.Add(call, ticket, exchangeKernelCount)
	}
}

// recordMessage returns the ticket of the last collective.
func (h *history) recordMessage(call *driver.Call) (ticket uint64) {
	ticket, _ = h.lastCall()
	h.callCounts[call.Path].Add(1)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(call.Operation))
	return ticket
}

// recordComparison records a ticket for comparing a call during a capture.
func (h *history) recordComparison(ticket uint64) {
	_, operation := h.lastCall()
	h.calls[ticket%historySize].Store(nil)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(operation))
}

func (h *history) lastCall() (ticket uint64, operation driver.Operation) {
	packed := h.lastTicketAndOperation.Load()
	return packed >> operationBits, driver.Operation(packed & (1<<operationBits - 1))
}

func (h *history) callCountsByPath() (callCounts [driver.Paths]uint64) {
	for path := range callCounts {
		callCounts[path] = h.callCounts[path].Load()
	}
	return callCounts
}

// callOf returns nil if the ticket has no call or is too old.
func (h *history) callOf(ticket uint64) *driver.Call {
	if lastTicket, _ := h.lastCall(); ticket == 0 || ticket > lastTicket {
		return nil
	}
	call := h.calls[ticket%historySize].Load()
	// The call of ticket+historySize may have overwritten it.
	if lastTicket, _ := h.lastCall(); lastTicket-ticket >= historySize-1 {
		return nil
	}
	return call
}
