package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// history counts the launches of a group and stores its last historySize collectives. A ticket is
// the number of a collective in the group, from 1.
//
// Writers hold the communicator's lock, but readers must not wait for that lock. A writer stores a
// call before it updates lastTicketAndOperation. The calls of older tickets are overwritten, so a
// reader checks lastTicketAndOperation again after it has read a call.
type history struct {
	// lastTicketAndOperation is ticket<<operationBits | operation. The ticket is that of the last
	// collective. The operation is that of the last call, which may be a message.
	lastTicketAndOperation atomic.Uint64
	callCounts             [driver.Paths]atomic.Uint64 // number of calls by path
	// calls holds the call of a ticket at index ticket % historySize.
	calls [historySize]atomic.Pointer[driver.Call]

	launches direct.Launches // of symmem's own kernels, to find the call that a kernel reports
}

const operationBits = 8 // enough for every driver.Operation

// historySize is the number of tickets whose calls are stored. It is a power of two, so that the
// modulo operation is fast.
const historySize = 256

// recordCollective records that a collective is launched or, with ticket 0, that another library
// captures it. exchangeKernelCount is the number of symmem's own kernels in the call that
// communicate with other ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	// Only holders of the lock write, so plain loads and stores lose no count.
	spin.Publish64(&h.callCounts[call.Path], h.callCounts[call.Path].Load()+1)
	if ticket != 0 {
		spin.Publish(&h.calls[ticket%historySize], call)
		spin.Publish64(&h.lastTicketAndOperation, ticket<<operationBits|uint64(call.Operation))
	}

	if exchangeKernelCount == 0 { // the call has no launches to record
		return
	}

	if ticket == 0 {
		h.launches.AddCaptured(call)
		return
	}

	h.launches.Add(call, ticket, exchangeKernelCount)
}

// recordMessage records that a Send or Recv is launched. It returns the ticket of the last
// collective, because messages have no tickets.
func (h *history) recordMessage(call *driver.Call) (ticket uint64) {
	ticket, _ = h.lastCall()
	h.callCounts[call.Path].Add(1)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(call.Operation))
	return ticket
}

// recordComparison records a ticket that is used only to compare a call during a capture. For this
// ticket, callOf returns nil.
func (h *history) recordComparison(ticket uint64) {
	_, operation := h.lastCall()
	h.calls[ticket%historySize].Store(nil)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(operation))
}

// lastCall returns the ticket of the last collective and the operation of the last call. That call
// may be a message after the collective. Before the first collective, ticket is 0.
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

// callOf returns the collective with the given ticket. It returns nil if the ticket has no call, if
// its call is no longer stored, or if no collective has got the ticket yet.
func (h *history) callOf(ticket uint64) *driver.Call {
	lastTicket, _ := h.lastCall()
	if ticket == 0 || ticket > lastTicket {
		return nil
	}

	call := h.calls[ticket%historySize].Load()
	// The call of ticket+historySize may have been stored at the same index in the meantime. Its
	// writer updates lastTicketAndOperation later. So the call is that of ticket only if the last
	// ticket is still below ticket+historySize-1.
	lastTicket, _ = h.lastCall()
	if lastTicket-ticket >= historySize-1 {
		return nil
	}

	return call
}
