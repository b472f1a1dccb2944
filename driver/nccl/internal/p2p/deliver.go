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

// The stream of a Recv waits on the GPU until the host starts the copy of its message. The host
// reads the message's header from the mailbox, memory that the sender shares, and waits until the
// sender's GPU has set the flag arrived. It then accepts the message: it clears arrived, so that
// the sender cannot withdraw the message, and stores addresses in the Recv's descriptor. Setting
// the word Go of the descriptor starts the copy.

// startDelivery starts deliverMessages if it does not run and a Recv has no message yet. The caller
// must hold in.mu.
func (in *inbox) startDelivery() {
	if in.isDelivering || in.stopped || len(in.recvsWithoutMessage) == 0 {
		return
	}

	in.isDelivering = true
	in.goroutines.Go(in.deliverMessages)
}

// deliverMessages accepts messages for Recvs and starts their copies, until every Recv has its
// message or the group has ended. It must not call CUDA, which could wait for a stream that itself
// waits for a message.
func (in *inbox) deliverMessages() {
	ranked.AssertMayWait()
	w := in.mailbox.wakeup()
	for polls := 0; ; polls++ {
		wakeCount := atomic.LoadUint32(&w.wakeCount) // before the headers, so that no wake is missed
		r := in.acceptMessages()
		for _, e := range r.accepted {
			in.startCopy(e)
		}

		if r.err != nil {
			_ = in.plane.Fail(r.err) // closes in.ended, which ends the loop
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

const (
	spinPolls  = 50  // first polls, without a pause
	yieldPolls = 200 // next polls, which yield the processor; later ones sleep
	maxSleep   = 10 * time.Millisecond
)

// pause waits after a number of polls. A sleep ends early if wake has been called since the caller
// read wakeCount.
func (w *wakeup) pause(wakeCount uint32, polls int, hasAnnounced bool) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
		return
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
		return
	}

	sleep := maxSleep
	if hasAnnounced {
		sleep = gpu.PollPause // a GPU that sets arrived does not call wake
	}

	atomic.AddInt32(&w.sleeperCount, 1)
	sys.FutexWait(&w.wakeCount, wakeCount, sleep)
	atomic.AddInt32(&w.sleeperCount, -1)
}

// deliveryRound is the result of acceptMessages.
type deliveryRound struct {
	accepted     []*End // Recvs that have accepted their messages
	hasAnnounced bool   // an announced message may be for a Recv but cannot be accepted yet
	isDone       bool   // nothing is left to deliver, or the group has ended
	err          error
}

func (in *inbox) acceptMessages() deliveryRound {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.hasEnded() {
		in.isDelivering = false
		return deliveryRound{isDone: true}
	}

	r := deliveryRound{err: in.readHeaders()}
	remaining := in.recvsWithoutMessage[:0]
	for _, e := range in.recvsWithoutMessage {
		isAccepted := false
		if r.err == nil { // after an error, keep the remaining Recvs
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
		r.hasAnnounced = true
	}

	in.isDelivering = len(remaining) > 0 || len(r.accepted) > 0
	r.isDone = !in.isDelivering
	return r
}

func (in *inbox) hasEnded() bool {
	select {
	case <-in.ended:
		return true
	default:
		return false
	}
}

// accept claims the message of a Recv and fills in the Recv's descriptor. It returns false if the
// Recv must keep waiting.
func (in *inbox) accept(e *End) (accepted bool, err error) {
	a := e.announcement
	if a == nil {
		return false, nil
	}

	// An earlier launch of a CUDA graph may still use the descriptor or the message's flags.
	if !e.canAccept() || !a.ownsFlags() {
		return false, nil
	}

	if !in.canClaim(a) {
		return false, nil
	}

	if a.bytes > 0 {
		segment := in.segmentOf(a) // the sender's GPU memory that contains the data
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
	e.descriptor.Taken = uint64(in.mailbox.deviceAddress(copied)) // set by the GPU after the copy
	e.markHandled()
	a.isAccepted = true
	a.previousInSlot = nil
	return true, nil
}

// canClaim reports whether a message's data has arrived and cannot be overwritten.
func (in *inbox) canClaim(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	return atomic.LoadUint32(arrived) == 1 && !in.canBeOverwritten(a)
}

// canBeOverwritten reports whether a later launch of the sender's CUDA graph may overwrite the
// message. Launches share their memory and usually wait until the previous message has been copied.
// After a failure, the sender sets canOverwrite and then ends this wait.
func (in *inbox) canBeOverwritten(a *announcement) bool {
	ring := in.mailbox.headersFrom(a.source)
	isInGraph := a.inGraph != 0
	return isInGraph && atomic.LoadUint32(&ring.canOverwrite) != 0
}

// claimMessage prevents the sender from withdrawing the message. It returns false if the sender has
// already withdrawn the message or may overwrite it.
func (in *inbox) claimMessage(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	if !atomic.CompareAndSwapUint32(arrived, 1, 0) {
		return false
	}

	if in.canBeOverwritten(a) { // may have changed since canClaim
		atomic.StoreUint32(arrived, 1) // undo the claim
		return false
	}

	return true
}

// startCopy calls the user's function Call.Arrived and then starts the GPU's copy of an accepted
// message. The caller must not hold in.mu.
func (in *inbox) startCopy(e *End) {
	if onArrival := e.plan.Arrived; onArrival != nil {
		if err := driver.Guard("Call.Arrived", func() { onArrival(e.source) }); err != nil {
			_ = in.plane.Fail(err)
		}

		in.device.Streams.HappensBefore.Add(1) // publishes writes of onArrival to waiters of the stream
	}

	atomic.StoreUint32(&e.descriptor.Go, 1) // ends the wait of the Recv's stream
}
