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

// deliver starts the goroutine that delivers messages if it is needed and not running.
func (in *inbox) deliver() {
	if in.deliveryRuns || in.stopped || len(in.pending) == 0 {
		return
	}
	in.deliveryRuns = true
	in.goroutines.Go(in.deliverAll)
}

// deliverAll delivers messages while any Recv is waiting and the group has not failed or closed. It
// must not call CUDA, because such a call might wait for a stream that is itself waiting for a
// message.
func (in *inbox) deliverAll() {
	ranked.Waiting()
	w := in.mailbox.wakeup()
	for polls := 0; ; polls++ {
		word := atomic.LoadUint32(&w.word)
		ready, announced, more, err := in.deliverable()
		for _, e := range ready {
			in.startCopy(e)
		}
		if err != nil {
			_ = in.plane.Fail(err)
		}
		switch {
		case !more:
			return
		case len(ready) > 0:
			polls = 0
		default:
			w.pause(word, polls, announced)
		}
	}
}

const (
	spinPolls  = 50  // polls without a pause
	yieldPolls = 200 // subsequent polls that only yield the processor
	// idleSleep limits each sleep. A peer that announces a message wakes the sleeper earlier.
	idleSleep = 10 * time.Millisecond
)

// pause waits between two polls. A rank that announces a message wakes this rank, but a GPU that
// completes a message does not. While an announced message is incomplete, pause therefore sleeps
// only briefly.
func (w *wakeup) pause(word uint32, polls int, announced bool) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
	default:
		sleep := idleSleep
		if announced {
			sleep = gpu.PollPause
		}
		atomic.AddInt32(&w.sleeping, 1)
		sys.FutexWait(&w.word, word, sleep)
		atomic.AddInt32(&w.sleeping, -1)
	}
}

// deliverable removes the receives whose messages have arrived from in.pending, and returns them.
// announced reports whether a message for a remaining Recv has been announced. more reports whether
// delivery must continue.
func (in *inbox) deliverable() (ready []*End, announced, more bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-in.ended:
		in.deliveryRuns = false
		return nil, false, false, nil
	default:
	}
	err = in.readHeaders()
	remaining := in.pending[:0]
	for _, e := range in.pending {
		accepted := false
		if err == nil {
			accepted, err = in.accept(e)
		}
		if accepted {
			ready = append(ready, e)
			continue
		}
		announced = announced || e.announcement != nil
		remaining = append(remaining, e)
	}
	clear(in.pending[len(remaining):])
	in.pending = remaining
	announced = announced || in.anySourceRecvs > 0 && len(in.unmatched) > 0
	in.deliveryRuns = len(remaining) > 0 || len(ready) > 0
	return ready, announced, in.deliveryRuns, err
}

// accept fills in the descriptor of a Recv if all of these conditions hold: the message has
// arrived, and the sender is not withdrawing it; the peer's memory is mapped; no earlier message in
// the same slot is pending; no earlier launch uses the descriptor.
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
	if !in.claim(a) {
		return false, nil
	}
	e.descriptor.To, e.descriptor.Bytes = uint64(e.plan.Address), a.bytes
	e.descriptor.Taken = uint64(in.mailbox.deviceAddress(&in.mailbox.flags(a.source).taken[a.slot]))
	e.handle()
	a.accepted, a.previous = true, nil
	return true, nil
}

// isComplete reports whether a message's data has arrived and will not be overwritten.
func (in *inbox) isComplete(a *announcement) bool {
	return atomic.LoadUint32(&in.mailbox.flags(a.source).full[a.slot]) == 1 && !in.released(a)
}

// released reports whether the sender may overwrite a message before it is copied (see
// End.release).
func (in *inbox) released(a *announcement) bool {
	return a.replayed != 0 && atomic.LoadUint32(&in.mailbox.ring(a.source).released) != 0
}

// claim takes a message for a Recv. It returns false if the sender has withdrawn the message.
func (in *inbox) claim(a *announcement) bool {
	full := &in.mailbox.flags(a.source).full[a.slot]
	if !atomic.CompareAndSwapUint32(full, 1, 0) {
		return false
	}
	if in.released(a) {
		atomic.StoreUint32(full, 1) // so that End.release can withdraw the message
		return false
	}
	return true
}

// startCopy makes the stream of a Recv copy the accepted message. The caller must not hold in.mu,
// because startCopy calls the user's callback.
func (in *inbox) startCopy(e *End) {
	if arrived := e.plan.Arrived; arrived != nil {
		if err := driver.Guard("Call.Arrived", func() { arrived(e.source) }); err != nil {
			_ = in.plane.Fail(err)
		}
		in.device.Streams.Order.Add(1)
	}
	atomic.StoreUint32(&e.descriptor.Go, 1)
}
