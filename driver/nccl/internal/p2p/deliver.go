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

// To deliver a message, the host waits until the sender's GPU has set the flag arrived in shared
// memory. It then accepts the message: it clears the flag, so that the sender can no longer
// withdraw the message, and stores the addresses for the copy in the Recv's descriptor. Finally, it
// sets descriptor.Go, and the stream of the Recv stops waiting and copies the message.

// startDelivery runs deliverMessages in the background while Recvs have no message. The caller must
// hold in.mu.
func (in *inbox) startDelivery() {
	if in.isDelivering || in.stopped || len(in.recvsWithoutMessage) == 0 {
		return
	}

	in.isDelivering = true
	in.goroutines.Go(in.deliverMessages)
}

// deliverMessages runs until every Recv has its message or the group has ended. It must not call
// CUDA, because the call could block until a stream has received a message.
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
			w.pause(wakeCount, polls, r.maxSleep())
		}
	}
}

const (
	spinPolls  = 50  // polls without a pause
	yieldPolls = 200 // further polls that only yield the processor; a sleep follows each later poll
	idleSleep  = 10 * time.Millisecond
)

// pause waits before the next poll. A sleep ends early if wake has been called since the caller
// read wakeCount.
func (w *wakeup) pause(wakeCount uint32, polls int, maxSleep time.Duration) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
		return
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
		return
	}

	atomic.AddInt32(&w.sleeperCount, 1)
	sys.FutexWait(&w.wakeCount, wakeCount, maxSleep)
	atomic.AddInt32(&w.sleeperCount, -1)
}

// deliveryRound is the result of acceptMessages.
type deliveryRound struct {
	accepted []*End // Recvs that have accepted their messages
	mustPoll bool   // an announced message may be for a Recv but cannot be accepted yet
	isDone   bool   // nothing is left to deliver, or the group has ended
	err      error
}

func (r *deliveryRound) maxSleep() time.Duration {
	if r.mustPoll {
		return gpu.PollPause // GPUs set flags without calling wake
	}

	return idleSleep
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
		if r.err == nil { // after an error, the other Recvs keep waiting
			isAccepted, r.err = in.accept(e)
		}

		if isAccepted {
			r.accepted = append(r.accepted, e)
			continue
		}

		if e.announcement != nil {
			r.mustPoll = true
		}

		remaining = append(remaining, e)
	}

	clear(in.recvsWithoutMessage[len(remaining):])
	in.recvsWithoutMessage = remaining
	if in.anySourceRecvs > 0 && len(in.unassigned) > 0 {
		r.mustPoll = true
	}

	r.isDone = len(remaining) == 0 && len(r.accepted) == 0
	in.isDelivering = !r.isDone
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

// accept claims the message of a Recv and fills in its descriptor. It returns false if the Recv
// must keep waiting.
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

// canClaim reports whether a message has arrived and its sender must not overwrite it.
func (in *inbox) canClaim(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	return atomic.LoadUint32(arrived) == flagSet && !in.canBeOverwritten(a)
}

// canBeOverwritten reports whether the next launch of the sender's CUDA graph may overwrite the
// message. A launch usually waits until the previous message has been copied. After a failure, the
// sender sets canOverwrite before it ends this wait.
func (in *inbox) canBeOverwritten(a *announcement) bool {
	ring := in.mailbox.headersFrom(a.source)
	isInGraph := a.inGraph != 0
	return isInGraph && atomic.LoadUint32(&ring.canOverwrite) != flagCleared
}

// claimMessage keeps the sender from withdrawing the message. It returns false if the sender has
// already done so or may overwrite the message.
func (in *inbox) claimMessage(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	wasSet := atomic.CompareAndSwapUint32(arrived, flagSet, flagCleared)
	if !wasSet {
		return false
	}

	if in.canBeOverwritten(a) { // may have changed since canClaim
		atomic.StoreUint32(arrived, flagSet) // undo the claim
		return false
	}

	return true
}

// startCopy calls the user's function Call.Arrived and then makes the GPU copy an accepted message.
// The caller must not hold in.mu.
func (in *inbox) startCopy(e *End) {
	if onArrival := e.plan.Arrived; onArrival != nil {
		if err := driver.Guard("Call.Arrived", func() { onArrival(e.source) }); err != nil {
			_ = in.plane.Fail(err)
		}

		// A goroutine that waits for the stream must see what onArrival has written.
		in.device.Streams.HappensBefore.Add(1)
	}

	atomic.StoreUint32(&e.descriptor.Go, flagSet)
}
