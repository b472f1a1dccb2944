package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// history is a ring buffer of a group's last collectives, which errors describe. A ticket is the
// number of a collective in the group, from 1. Writers hold communicator.mu. Readers are lock-free.
type history struct {
	// lastTicketAndOperation is ticket<<operationBits | operation: the ticket of the last collective,
	// and the operation of the last call. The last call may be a message, which has no ticket.
	lastTicketAndOperation atomic.Uint64
	callCounts             [driver.Paths]atomic.Uint64
	calls                  [historySize]atomic.Pointer[driver.Call] // at index ticket % historySize

	// launches finds the call of one of symmem's own kernels that has reported a fault.
	launches direct.Launches
}

const operationBits = 8 // enough for every driver.Operation

const historySize = 256 // a power of two, for a fast modulo

// lastCall returns the ticket of the last collective, or 0, and the operation of the last call,
// which may be a later message.
func (h *history) lastCall() (ticket uint64, operation driver.Operation) {
	packed := h.lastTicketAndOperation.Load()
	return packed >> operationBits, driver.Operation(packed & (1<<operationBits - 1))
}

// recordCollective records the launch of a collective. Ticket 0 means that another library captures
// the call in a CUDA graph. exchangeKernelCount is the number of symmem's own kernels in the call
// that communicate with other ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	// The lock excludes other writers, so a load and a store replace the slower atomic addition.
	spin.Publish64(&h.callCounts[call.Path], h.callCounts[call.Path].Load()+1)
	if ticket != 0 {
		spin.Publish(&h.calls[ticket%historySize], call)
		spin.Publish64(&h.lastTicketAndOperation, ticket<<operationBits|uint64(call.Operation))
	}

	if exchangeKernelCount == 0 { // no kernel of the call can report a fault
		return
	}

	if ticket == 0 {
		h.launches.AddCaptured(call)
		return
	}

	h.launches.Add(call, ticket, exchangeKernelCount)
}

// recordMessage records the launch of a Send or Recv, and returns the ticket of the last
// collective.
func (h *history) recordMessage(call *driver.Call) (ticket uint64) {
	ticket, _ = h.lastCall()
	h.callCounts[call.Path].Add(1)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(call.Operation))
	return ticket
}

// recordComparison records a ticket without a collective. Ranks use such a ticket to compare their
// calls during a capture.
func (h *history) recordComparison(ticket uint64) {
	_, operation := h.lastCall()
	h.calls[ticket%historySize].Store(nil)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(operation))
}

// callOf returns the collective with the given ticket, or nil if there is none or it is no longer
// stored.
func (h *history) callOf(ticket uint64) *driver.Call {
	lastTicket, _ := h.lastCall()
	if ticket == 0 || ticket > lastTicket {
		return nil
	}

	call := h.calls[ticket%historySize].Load()
	// Writers store a call before its ticket. Therefore the replacement of this call may already be
	// stored while its predecessor is still the last ticket.
	replacement := ticket + historySize
	lastTicket, _ = h.lastCall()
	mayBeReplaced := lastTicket+1 >= replacement
	if mayBeReplaced {
		return nil
	}

	return call
}

func (h *history) callCountsByPath() (callCounts [driver.Paths]uint64) {
	for path := range callCounts {
		callCounts[path] = h.callCounts[path].Load()
	}

	return callCounts
}
