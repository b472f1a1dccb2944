package p2p

import (
	"runtime"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
	"symmem/internal/sys"
)

// The stream of a Recv waits on the GPU until its message can be copied. A goroutine of the rank
// ends this wait. For example, rank 0 sends a message to rank 1, where a Recv waits for it:
//
//  1. Rank 0 announces the message: it writes a header into the mailbox, which is memory that both
//     ranks share. The goroutine on rank 1 reads the header. It becomes the Recv's announcement.
//  2. Rank 0's GPU writes the data to memory that rank 1 can map. Then it sets the flag arrived in
//     the mailbox to 1.
//  3. The goroutine claims the message: it sets arrived to 0, so that rank 0 cannot withdraw the
//     message any more. Then it fills in the Recv's descriptor, which says what the GPU must copy.
//     Now the Recv has accepted the message.
//  4. The goroutine sets the word Go of the descriptor to 1. Rank 1's GPU copies the message.
//
// If the message arrives before the Recv is called, the call usually takes steps 3 and 4 itself.

// startDelivery starts deliverMessages if a Recv is waiting for a message. The caller must hold
// in.mu.
func (in *inbox) startDelivery() {
	if in.isDelivering || in.stopped || len(in.recvsWithoutMessage) == 0 {
		return
	}

	in.isDelivering = true
	in.goroutines.Go(in.deliverMessages)
}

// deliverMessages accepts messages for waiting Recvs and starts their copies. It runs on a
// goroutine until no Recv is waiting, or until the group has failed or closed. It must not call
// CUDA, because the call might wait for a stream that is itself waiting for a message.
func (in *inbox) deliverMessages() {
	ranked.AssertMayWait()
	w := in.mailbox.wakeup()
	for polls := 0; ; polls++ {
		// Read the count before the messages, so that pause notices messages that arrive meanwhile.
		wakeCount := atomic.LoadUint32(&w.wakeCount)
		r := in.acceptMessages()
		for _, e := range r.accepted {
			in.startCopy(e)
		}

		if r.err != nil {
			_ = in.plane.Fail(r.err) // closes in.ended, so that a later round ends the loop
		}

		switch {
		case r.isDone:
			return
		case len(r.accepted) > 0:
			polls = 0
		default:
			w.pause(wakeCount, polls, r.hasAnnounced)
		}
	}
}

// The later a message arrives, the longer the pauses between the polls for it are.
const (
	spinPolls  = 50  // polls without a pause
	yieldPolls = 200 // polls after these that only yield the processor; later polls sleep
	maxSleep   = 10 * time.Millisecond
)

// pause waits between two polls. polls is the number of earlier polls. A sleep ends early if
// another goroutine or rank has called wake since wakeCount was read.
//
// A rank that announces a message wakes this rank. A GPU that sets arrived does not. The sleep is
// therefore short if hasAnnounced is set: an announced message cannot be accepted yet.
func (w *wakeup) pause(wakeCount uint32, polls int, hasAnnounced bool) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
		return // poll again at once
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
		return
	}

	sleep := maxSleep
	if hasAnnounced {
		sleep = gpu.PollPause
	}

	atomic.AddInt32(&w.sleeperCount, 1)
	sys.FutexWait(&w.wakeCount, wakeCount, sleep)
	atomic.AddInt32(&w.sleeperCount, -1)
}

// deliveryRound is the result of acceptMessages.
type deliveryRound struct {
	accepted     []*End // Recvs that have accepted their messages
	hasAnnounced bool   // a message for another Recv has been announced but cannot be accepted yet
	isDone       bool   // no Recv was waiting, or the group has ended
	err          error
}

// acceptMessages accepts the messages that have arrived.
func (in *inbox) acceptMessages() deliveryRound {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.hasEnded() {
		in.isDelivering = false
		return deliveryRound{isDone: true}
	}

	r := deliveryRound{err: in.readHeaders()}
	remaining := in.recvsWithoutMessage[:0] // reuses the array
	for _, e := range in.recvsWithoutMessage {
		isAccepted := false
		if r.err == nil { // after an error, the other Recvs keep waiting
			isAccepted, r.err = in.accept(e)
		}

		if isAccepted {
			r.accepted = append(r.accepted, e)
			continue
		}

		if e.announcement != nil {
			r.hasAnnounced = true
		}

		remaining = append(remaining, e)
	}

	clear(in.recvsWithoutMessage[len(remaining):])
	in.recvsWithoutMessage = remaining
	if in.anySourceRecvs > 0 && len(in.unassigned) > 0 {
		r.hasAnnounced = true // it may be for a Recv from any source
	}

	in.isDelivering = len(remaining) > 0 || len(r.accepted) > 0
	r.isDone = !in.isDelivering
	return r
}

// hasEnded reports whether the group has failed or closed.
func (in *inbox) hasEnded() bool {
	select {
	case <-in.ended:
		return true
	default:
		return false
	}
}

// accept accepts the message of a Recv: it claims the message and fills in the Recv's descriptor.
// It returns false if that is not possible yet.
func (in *inbox) accept(e *End) (accepted bool, err error) {
	a := e.announcement
	if a == nil {
		return false, nil
	}

	// An earlier launch of a CUDA graph may still use the descriptor or the message's flags.
	if !e.canAccept() || !a.ownsFlags() {
		return false, nil
	}

	if !in.isComplete(a) {
		return false, nil
	}

	if a.bytes > 0 {
		segment := in.segmentOf(a) // memory of the sender's GPU, which contains the data
		if segment.bytes != int64(a.size) {
			return false, in.invalidError(a)
		}

		if segment.address == 0 {
			return false, segment.err // nil while another goroutine is mapping the segment
		}

		e.descriptor.From = uint64(segment.address) + a.offset
	}

	if !in.claimMessage(a) {
		return false, nil
	}

	copied := &in.mailbox.flags(a.source).copied[a.slot]
	e.descriptor.To = uint64(e.plan.Address)
	e.descriptor.Bytes = a.bytes
	e.descriptor.Taken = uint64(in.mailbox.deviceAddress(copied)) // the GPU sets it after the copy
	e.markHandled()
	a.isAccepted = true
	a.previousInSlot = nil
	return true, nil
}

// isComplete reports whether a message's data has arrived and cannot be overwritten.
func (in *inbox) isComplete(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	return atomic.LoadUint32(arrived) == 1 && !in.canBeOverwritten(a)
}

// canBeOverwritten reports whether the sender might overwrite the message before the receiver has
// copied it. This happens only in CUDA graphs, whose launches all use the same memory. Usually, a
// launch waits until the previous message has been copied. After a failure, the sender ends the
// wait, and sets canOverwrite first.
func (in *inbox) canBeOverwritten(a *announcement) bool {
	ring := in.mailbox.headersFrom(a.source)
	isInGraph := a.inGraph != 0
	return isInGraph && atomic.LoadUint32(&ring.canOverwrite) != 0
}

// claimMessage claims a message, so that the sender cannot withdraw it any more. It returns false
// if the sender has already withdrawn the message or might overwrite it.
func (in *inbox) claimMessage(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	if !atomic.CompareAndSwapUint32(arrived, 1, 0) {
		return false
	}

	// Check again, because the sender may have set canOverwrite since the first check.
	if in.canBeOverwritten(a) {
		atomic.StoreUint32(arrived, 1) // so that the sender can withdraw the message
		return false
	}

	return true
}

// startCopy calls Call.Arrived and starts the GPU's copy of an accepted message. The caller must
// not hold in.mu, because Arrived is the user's function.
func (in *inbox) startCopy(e *End) {
	if onArrival := e.plan.Arrived; onArrival != nil {
		if err := driver.Guard("Call.Arrived", func() { onArrival(e.source) }); err != nil {
			_ = in.plane.Fail(err)
		}

		// Callers that wait for the stream see the writes of onArrival.
		in.device.Streams.HappensBefore.Add(1)
	}

	atomic.StoreUint32(&e.descriptor.Go, 1) // ends the wait of the Recv's stream
}
