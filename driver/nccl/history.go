package nccl

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/internal/spin"
)

// A history stores the last 256 collectives of a group, so that errors can describe them. The
// ticket of a collective is its number in the group, from 1. For example, collective 1 is stored at
// index 1. Collective 257 replaces it, because 257 % 256 is 1.
//
// Writers hold the communicator's lock. Readers must not wait for that lock, so they use atomic
// fields. A writer stores collective 257 first, and then changes the last ticket to 257. A reader
// that looks for collective 1 at this time can find collective 257 instead. It checks the last
// ticket afterwards. If that is 256 or more, it rejects what it has found.

// history counts the calls of a group and stores its last historySize collectives.
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

// lastCall returns the ticket of the last collective and the operation of the last call. That call
// may be a message after the collective. Before the first collective, ticket is 0.
func (h *history) lastCall() (ticket uint64, operation driver.Operation) {
	packed := h.lastTicketAndOperation.Load()
	return packed >> operationBits, driver.Operation(packed & (1<<operationBits - 1))
}

// recordCollective records that a collective is launched or, with ticket 0, that another library
// captures it in a CUDA graph. exchangeKernelCount is the number of symmem's own kernels in the
// call that communicate with other ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	// Only holders of the lock write, so a load and a store lose no count.
	spin.Publish64(&h.callCounts[call.Path], h.callCounts[call.Path].Load()+1)
	if ticket != 0 {
		spin.Publish(&h.calls[ticket%historySize], call)
		spin.Publish64(&h.lastTicketAndOperation, ticket<<operationBits|uint64(call.Operation))
	}

	if exchangeKernelCount == 0 { // no kernel can report this call
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

// callOf returns the collective with the given ticket. It returns nil if the ticket has no call, if
// its call is no longer stored, or if no collective has got the ticket yet.
func (h *history) callOf(ticket uint64) *driver.Call {
	lastTicket, _ := h.lastCall()
	if ticket == 0 || ticket > lastTicket {
		return nil
	}

	call := h.calls[ticket%historySize].Load()
	// The call of ticket+historySize may have replaced it. Its writer changes the last ticket later,
	// so the last ticket can still be ticket+historySize-1.
	lastTicket, _ = h.lastCall()
	mayBeReplaced := lastTicket >= ticket+historySize-1
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
