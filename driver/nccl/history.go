package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// history contains a group's last calls. Each collective has a ticket, its number in the group from
// 1. Messages have no ticket. Writers hold communicator.mu. Readers are lock-free.
type history struct {
	last       atomic.Uint64 // last ticket and operation, packed by setLast
	callCounts [driver.Paths]atomic.Uint64
	calls      [historySize]atomic.Pointer[driver.Call] // at index ticket % historySize

	launches direct.Launches // calls of symmem's own kernels, for their reports of faults
}

const operationBits = 8 // enough for every driver.Operation

const historySize = 256 // a power of two, for a fast modulo

// lastCall returns the last ticket, or 0, and the operation of the last collective or message.
func (h *history) lastCall() (ticket uint64, operation driver.Operation) {
	const operationMask = 1<<operationBits - 1
	packed := h.last.Load()
	return packed >> operationBits, driver.Operation(packed & operationMask)
}

// recordCollective records a launch or, if ticket is 0, a call that another library captures.
// exchangeKernelCount is the number of symmem's kernels that communicate between ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	h.count(call.Path)
	if ticket != 0 {
		spin.Publish(&h.calls[ticket%historySize], call)
		h.setLast(ticket, call.Operation)
	}

	switch {
	case exchangeKernelCount == 0: // no kernel can report a fault
	case ticket == 0:
		h.launches.AddCaptured(call)
	default:
		h.launches.Add(call, ticket, exchangeKernelCount)
	}
}

// recordMessage records a message and returns the last ticket.
func (h *history) recordMessage(call *driver.Call) (lastTicket uint64) {
	lastTicket, _ = h.lastCall()
	h.count(call.Path)
	h.setLast(lastTicket, call.Operation)
	return lastTicket
}

// recordComparison records the ticket for the comparison of a captured call.
func (h *history) recordComparison(ticket uint64) {
	_, operation := h.lastCall()
	h.calls[ticket%historySize].Store(nil)
	h.setLast(ticket, operation)
}

// count counts a call. With only one writer, it needs no atomic addition, which would be slower.
func (h *history) count(path driver.Path) {
	spin.Publish64(&h.callCounts[path], h.callCounts[path].Load()+1)
}

func (h *history) setLast(ticket uint64, operation driver.Operation) {
	spin.Publish64(&h.last, ticket<<operationBits|uint64(operation))
}

// callOf returns the collective with the given ticket, or nil if the history does not contain it.
func (h *history) callOf(ticket uint64) *driver.Call {
	lastTicket, _ := h.lastCall()
	if ticket == 0 || ticket > lastTicket {
		return nil
	}

	call := h.calls[ticket%historySize].Load()
	lastTicket, _ = h.lastCall()
	nextTicket := lastTicket + 1 // a writer may have stored its call already
	mayBeOverwritten := nextTicket >= ticket+historySize
	if mayBeOverwritten {
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
