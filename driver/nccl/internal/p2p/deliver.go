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

// startDelivery starts deliverMessages if a Recv is waiting for a message.
func (in *inbox) startDelivery() {
	if in.isDelivering || in.stopped || len(in.recvsWithoutMessage) == 0 {
		return
	}
	in.isDelivering = true
	in.goroutines.Go(in.deliverMessages)
}

// deliverMessages accepts messages for waiting Recvs and starts their copies. It returns once no
// Recv is waiting, or once the group has failed or closed. It must not call CUDA, because the call
// might wait for a stream that is itself waiting for a message.
func (in *inbox) deliverMessages() {
	ranked.AssertMayWait()
	w := in.mailbox.wakeup()
	for polls := 0; ; polls++ {
		wakeCount := atomic.LoadUint32(&w.wakeCount)
		accepted, hasAnnounced, mustContinue, err := in.acceptMessages()
		for _, e := range accepted {
			in.startCopy(e)
		}
		if err != nil {
			_ = in.plane.Fail(err)
		}
		switch {
		case !mustContinue:
			return
		case len(accepted) > 0:
			polls = 0
		default:
			w.pause(wakeCount, polls, hasAnnounced)
		}
	}
}

const (
	spinPolls  = 50  // polls without a pause
	yieldPolls = 200 // polls after spinPolls that yield the processor; later polls sleep
	maxSleep   = 10 * time.Millisecond
)

// pause waits between two polls. A rank that announces a message wakes this rank, but a GPU that
// completes an announced message does not. The sleep is therefore short if hasAnnounced is set.
func (w *wakeup) pause(wakeCount uint32, polls int, hasAnnounced bool) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
	default:
		sleep := maxSleep
		if hasAnnounced {
			sleep = gpu.PollPause
		}
		atomic.AddInt32(&w.sleeperCount, 1)
		sys.FutexWait(&w.wakeCount, wakeCount, sleep)
		atomic.AddInt32(&w.sleeperCount, -1)
	}
}

// acceptMessages accepts messages that have arrived, and returns their Recvs. hasAnnounced is set
// if a message for another Recv has been announced. mustContinue is not set once no Recv is
// waiting or the group has ended.
func (in *inbox) acceptMessages() (accepted []*End, hasAnnounced, mustContinue bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-in.ended:
		in.isDelivering = false
		return nil, false, false, nil
	default:
	}
	err = in.readHeaders()
	remaining := in.recvsWithoutMessage[:0]
	for _, e := range in.recvsWithoutMessage {
		isAccepted := false
		if err == nil {
			isAccepted, err = in.accept(e)
		}
		if isAccepted {
			accepted = append(accepted, e)
			continue
		}
		hasAnnounced = hasAnnounced || e.announcement != nil
		remaining = append(remaining, e)
	}
	clear(in.recvsWithoutMessage[len(remaining):])
	in.recvsWithoutMessage = remaining
	hasAnnounced = hasAnnounced || in.anySourceRecvs > 0 && len(in.unassigned) > 0
	in.isDelivering = len(remaining) > 0 || len(accepted) > 0
	return accepted, hasAnnounced, in.isDelivering, err
}

// accept claims the message of a Recv and fills in the descriptor from which the GPU copies it. It
// returns false if that is not possible yet.
func (in *inbox) accept(e *End) (accepted bool, err error) {
	a := e.announcement
	if a == nil || !e.canAccept() || !a.ownsFlags() || !in.isComplete(a) {
		return false, nil
	}
	if a.bytes > 0 {
		segment := in.segmentOf(a)
		if segment.bytes != int64(a.size) {
			return false, in.errInvalid(a)
		}
		if segment.address == 0 {
			return false, segment.err
		}
		e.descriptor.From = uint64(segment.address) + a.offset
	}
	if !in.claimMessage(a) {
		return false, nil
	}
	e.descriptor.To = uint64(e.plan.Address)
	e.descriptor.Bytes = a.bytes
	e.descriptor.Taken = uint64(in.mailbox.deviceAddress(&in.mailbox.flags(a.source).copied[a.slot]))
	e.markHandled()
	a.isAccepted, a.previousInSlot = true, nil
	return true, nil
}

// isComplete reports whether a message's data has arrived and cannot be overwritten.
func (in *inbox) isComplete(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	return atomic.LoadUint32(arrived) == 1 && !in.canBeOverwritten(a)
}

// canBeOverwritten reports whether the group has failed and the sender might overwrite the message
// before the receiver has copied it (see End.release).
func (in *inbox) canBeOverwritten(a *announcement) bool {
	return a.inGraph != 0 && atomic.LoadUint32(&in.mailbox.headersFrom(a.source).canOverwrite) != 0
}

// claimMessage prevents the sender from withdrawing a message. It returns false if the sender has
// already withdrawn it or might overwrite it.
func (in *inbox) claimMessage(a *announcement) bool {
	arrived := &in.mailbox.flags(a.source).arrived[a.slot]
	if !atomic.CompareAndSwapUint32(arrived, 1, 0) {
		return false
	}
	if in.canBeOverwritten(a) {
		atomic.StoreUint32(arrived, 1) // so that End.release can withdraw the message
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
		in.device.Streams.HappensBefore.Add(1)
	}
	atomic.StoreUint32(&e.descriptor.Go, 1)
}
