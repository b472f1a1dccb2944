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
// Writers hold the communicator's lock (its field mu). Readers must not wait for that lock, so they
// use atomic fields. A writer stores collective 257 first, and then changes the last ticket from
// 256 to 257. A reader that looks for collective 1 between these two steps finds collective 257
// instead. Therefore it checks the last ticket afterwards, and rejects what it has found if the
// last ticket is 256 or more.

// history counts the calls of a group and stores its last historySize collectives.
type history struct {
	// lastTicketAndOperation is ticket<<operationBits | operation. The ticket is that of the last
	// collective. The operation is that of the last call, which may be a later message: messages have
	// no tickets.
	lastTicketAndOperation atomic.Uint64
	callCounts             [driver.Paths]atomic.Uint64 // number of calls by path
	// calls holds the call of a ticket at index ticket % historySize.
	calls [historySize]atomic.Pointer[driver.Call]

	// launches finds the call of a kernel that has reported a fault. It holds the calls of symmem's
	// own kernels.
	launches direct.Launches
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

// recordCollective records that a collective is launched. If another library captures it in a CUDA
// graph instead, ticket is 0. exchangeKernelCount is the number of the call's kernels that are
// symmem's own and communicate with other ranks.
func (h *history) recordCollective(call *driver.Call, ticket uint64, exchangeKernelCount int) {
	// Only holders of the lock write, so the count needs no atomic addition, which is slower.
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

// recordMessage records that a Send or Recv is launched. It returns the ticket of the last
// collective.
func (h *history) recordMessage(call *driver.Call) (ticket uint64) {
	ticket, _ = h.lastCall()
	h.callCounts[call.Path].Add(1)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(call.Operation))
	return ticket
}

// recordComparison records a ticket for which no collective is launched. The ranks use it to
// compare their calls during a capture. For this ticket, callOf returns nil.
func (h *history) recordComparison(ticket uint64) {
	_, operation := h.lastCall()
	h.calls[ticket%historySize].Store(nil)
	h.lastTicketAndOperation.Store(ticket<<operationBits | uint64(operation))
}

// callOf returns the collective with the given ticket. It returns nil if the ticket has no
// collective, if the collective is no longer stored, or if the ticket is above the last one.
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
