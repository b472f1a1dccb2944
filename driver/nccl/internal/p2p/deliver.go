package p2p

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// A message is delivered in these steps:
//   - When the data is ready, the sender's GPU sets the message's arrived flag.
//   - The receiver's host claims the message by clearing the flag. The sender can then no longer
//     withdraw the message.
//   - The Recv accepts the message: the host stores the addresses in the Recv's descriptor.
//   - The host sets descriptor.Go, and the Recv's stream copies the message.

// startDelivery starts deliverMessages if a Recv has not accepted its message. The caller must hold
// in.mu.
func (in *inbox) startDelivery() {
	if in.isDelivering || in.stopped || len(in.recvsWithoutMessage) == 0 {
		return
	}

	in.isDelivering = true
	in.goroutines.Go(in.deliverMessages)
}

// deliverMessages runs until every Recv has accepted its message or the group has ended. It must
// not call CUDA, because the call could wait for a message.
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
			_ = in.plane.Fail(r.err) // closes in.ended, so the next round is the last
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
	awaitsGPU bool   // a Recv may need a flag, which a GPU sets without calling wake
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
	acceptInRound := func(e *End) (isAccepted bool) {
		if r.err == nil {
			isAccepted, r.err = in.accept(e)
		}

		switch {
		case isAccepted:
			r.accepted = append(r.accepted, e)
		case e.announcement != nil:
			r.awaitsGPU = true
		}

		return isAccepted
	}
	in.recvsWithoutMessage = slices.DeleteFunc(in.recvsWithoutMessage, acceptInRound)
	if in.anySourceRecvs > 0 && len(in.unassigned) > 0 {
		r.awaitsGPU = true
	}

	r.isDone = len(in.recvsWithoutMessage) == 0 && len(r.accepted) == 0
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
	if a == nil || !e.ownsDescriptor() {
		return false, nil
	}

	if !a.ownsFlags() || !in.canClaim(a) {
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

	copiedFlag := &in.mailbox.flags(a.source).copied[a.slot]
	e.descriptor.To = uint64(e.plan.Address)
	e.descriptor.Bytes = a.bytes
	e.descriptor.Taken = uint64(in.mailbox.deviceAddress(copiedFlag)) // set after the copy
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

type slotKey struct {
	source int
	slot   uint64 // see header.slot
}

// announcement is a message that a sender has announced in this rank's mailbox.
type announcement struct {
	header
	source         int           // group rank of the sender
	previousInSlot *announcement // nil if there is none; cleared by accept
	isAccepted     bool          // a Recv has accepted the message
}

func (a *announcement) key() messageKey { return messageKey{a.source, int(a.tag), a.number} }

// ownsFlags reports whether the slot's flags describe this message, not an earlier one.
func (a *announcement) ownsFlags() bool {
	return a.previousInSlot == nil || a.previousInSlot.isAccepted
}

// isValid reports whether a correct peer could have written the header.
func (a *announcement) isValid() bool {
	isInSegment := a.segment > 0 &&
		a.offset <= a.segmentBytes && a.bytes <= a.segmentBytes-a.offset
	return a.tag <= driver.MaxTag && a.number > 0 && a.slot < Slots &&
		a.segment <= math.MaxUint32 && a.segmentBytes <= math.MaxInt64 &&
		(a.bytes == 0 || isInSegment)
}

// canClaim reports whether a message has arrived and cannot be overwritten.
func (in *inbox) canClaim(a *announcement) bool {
	arrivedFlag := &in.mailbox.flags(a.source).arrived[a.slot]
	return atomic.LoadUint32(arrivedFlag) == flagSet && !in.canBeOverwritten(a)
}

// canBeOverwritten reports whether a failure lets the next launch of the sender's CUDA graph
// overwrite the message (see End.release).
func (in *inbox) canBeOverwritten(a *announcement) bool {
	ring := in.mailbox.headersFrom(a.source)
	isInGraph := a.inGraph != 0
	return isInGraph && atomic.LoadUint32(&ring.canOverwrite) != flagCleared
}

// claimMessage keeps the sender from withdrawing the message. It returns false if the sender has
// already done so or may overwrite the message.
func (in *inbox) claimMessage(a *announcement) bool {
	arrivedFlag := &in.mailbox.flags(a.source).arrived[a.slot]
	isClaimed := atomic.CompareAndSwapUint32(arrivedFlag, flagSet, flagCleared)
	if !isClaimed {
		return false
	}

	if in.canBeOverwritten(a) { // a failure has occurred since canClaim
		atomic.StoreUint32(arrivedFlag, flagSet)
		return false
	}

	return true
}
