package p2p

import (
	"math"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// When the data of a message is ready, the sender's GPU sets the message's arrived flag. The
// receiver's host claims the message by clearing the flag, so that the sender can no longer withdraw
// the message. The Recv has accepted the message once its descriptor holds the addresses as well.
// Setting descriptor.Go then makes the Recv's stream copy the message.

// startDelivery runs deliverMessages in the background if a Recv has not accepted a message. The
// caller must hold in.mu.
func (in *inbox) startDelivery() {
	if in.isDelivering || in.stopped || len(in.recvsWithoutMessage) == 0 {
		return
	}

	in.isDelivering = true
	in.goroutines.Go(in.deliverMessages)
}

// deliverMessages runs until every Recv has accepted its message or the group has ended. It must
// not call CUDA, because the call could block until a stream has received a message.
func (in *inbox) deliverMessages() {
	ranked.AssertMayWait()
	w := in.mailbox.wakeup()
	for polls := 0; ; polls++ {
		wakeCount := atomic.LoadUint32(&w.wakeCount) // read first, so that no wake is missed
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

// deliveryRound is the result of acceptMessages.
type deliveryRound struct {
	accepted  []*End // Recvs that have accepted their messages
	awaitsGPU bool   // a Recv may be waiting for a flag of a GPU, which does not call wake
	isDone    bool   // nothing is left to deliver, or the group has ended
	err       error
}

const idleSleep = 10 * time.Millisecond

func (r *deliveryRound) maxSleep() time.Duration {
	if r.awaitsGPU {
		return gpu.PollPause
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
		if r.err == nil {
			isAccepted, r.err = in.accept(e)
		}

		if isAccepted {
			r.accepted = append(r.accepted, e)
			continue
		}

		if e.announcement != nil {
			r.awaitsGPU = true
		}

		remaining = append(remaining, e)
	}

	clear(in.recvsWithoutMessage[len(remaining):])
	in.recvsWithoutMessage = remaining
	if in.anySourceRecvs > 0 && len(in.unassigned) > 0 {
		r.awaitsGPU = true
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
	if a == nil || !e.ownsDescriptor() || !a.ownsFlags() || !in.canClaim(a) {
		return false, nil
	}

	if a.bytes > 0 {
		segment := in.segmentOf(a) // the sender's GPU memory that contains the data
		if segment.bytes != int64(a.segmentBytes) {
			return false, in.invalidError(a)
		}

		if segment.address == 0 {
			return false, segment.err // nil while mapSegment runs
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

type messageKey struct {
	source, tag int
	number      uint64
}

// slotKey identifies a slot for messages from a peer (see flags).
type slotKey struct {
	source int
	number uint64
}

// announcement is a message that a sender has announced in this rank's mailbox.
type announcement struct {
	header
	source         int           // group rank of the sender
	previousInSlot *announcement // nil if there is none, or once this message is accepted
	isAccepted     bool          // a Recv has accepted the message
}

func (a *announcement) key() messageKey { return messageKey{a.source, int(a.tag), a.number} }

// ownsFlags reports whether the slot's flags describe this message, not an earlier one.
func (a *announcement) ownsFlags() bool {
	return a.previousInSlot == nil || a.previousInSlot.isAccepted
}

// isValid reports whether a correct peer could have written the header.
func (a *announcement) isValid() bool {
	return a.tag <= driver.MaxTag && a.number > 0 && a.slot < Slots &&
		a.segment <= math.MaxUint32 && a.segmentBytes <= math.MaxInt64 &&
		(a.bytes == 0 ||
			a.segment > 0 && a.offset <= a.segmentBytes && a.bytes <= a.segmentBytes-a.offset)
}

// canClaim reports whether a message has arrived and cannot be overwritten.
func (in *inbox) canClaim(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	return atomic.LoadUint32(arrived) == flagSet && !in.canBeOverwritten(a)
}

// canBeOverwritten reports whether the next launch of the sender's CUDA graph may overwrite the
// message before it has been copied, which happens only after a failure (see End.release).
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

	if in.canBeOverwritten(a) { // since canClaim
		atomic.StoreUint32(arrived, flagSet)
		return false
	}

	return true
}
