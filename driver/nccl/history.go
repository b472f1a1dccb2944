package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// history is a ring buffer of a group's last collectives. A ticket is the number of a collective in
// the group, from 1. Writers hold communicator.mu. Readers are lock-free.
type history struct {
	lastTicketAndOperation atomic.Uint64 // in the format of packTicketAndOperation
	callCounts             [driver.Paths]atomic.Uint64
	calls                  [historySize]atomic.Pointer[driver.Call] // at index ticket % historySize

	launches direct.Launches // calls of direct kernels (symmem's own), which can report faults
}

const operationBits = 8 // enough for every driver.Operation

const historySize = 256 // a power of two, for a fast modulo

// lastCall returns the ticket of the last collective, or 0, and the operation of the last call. The
// last call may be a message, which has no ticket.
func (h *history) lastCall() (ticket uint64, operation driver.Operation) {
	const operationMask = 1<<operationBits - 1
	packed := h.lastTicketAndOperation.Load()
	return packed >> operationBits, driver.Operation(packed & operationMask)
}

func packTicketAndOperation(ticket uint64, operation driver.Operation) uint64 {
	return ticket<<operationBits | uint64(operation)
}

// recordCollective records a launch. A call that another library captures in a CUDA graph has
// ticket 0. exchangeKernelCount counts the call's direct kernels that communicate between ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	// The lock excludes other writers, so this needs no atomic addition, which is slower.
	spin.Publish64(&h.callCounts[call.Path], h.callCounts[call.Path].Load()+1)
	if ticket != 0 {
		spin.Publish(&h.calls[ticket%historySize], call)
		spin.Publish64(&h.lastTicketAndOperation, packTicketAndOperation(ticket, call.Operation))
	}

	if exchangeKernelCount == 0 {
		return
	}

	if ticket == 0 {
		h.launches.AddCaptured(call)
		return
	}

	h.launches.Add(call, ticket, exchangeKernelCount)
}

// recordMessage returns the ticket of the last collective.
func (h *history) recordMessage(call *driver.Call) (ticket uint64) {
	ticket, _ = h.lastCall()
	h.callCounts[call.Path].Add(1)
	h.lastTicketAndOperation.Store(packTicketAndOperation(ticket, call.Operation))
	return ticket
}

// recordComparison records a ticket without a collective, used to compare captured calls.
func (h *history) recordComparison(ticket uint64) {
	_, operation := h.lastCall()
	h.calls[ticket%historySize].Store(nil)
	h.lastTicketAndOperation.Store(packTicketAndOperation(ticket, operation))
}

// callOf returns the collective with the given ticket, or nil if the history does not contain it.
func (h *history) callOf(ticket uint64) *driver.Call {
	lastTicket, _ := h.lastCall()
	if ticket == 0 || ticket > lastTicket {
		return nil
	}

	call := h.calls[ticket%historySize].Load()
	// A writer stores the call before the ticket, so the next call may already be in the history.
	lastTicket, _ = h.lastCall()
	nextTicket := lastTicket + 1
	mayBeReplaced := nextTicket >= ticket+historySize
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
