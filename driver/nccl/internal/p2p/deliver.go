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

// deliver starts a goroutine that delivers messages, if a Recv is waiting and the goroutine is not
// running. in.mu is held.
func (in *inbox) deliver() {
	if in.running || in.stopped || len(in.open) == 0 {
		return
	}
	in.running = true
	in.delivering.Go(in.deliverAll)
}

// deliverAll delivers messages until no Recv is waiting or the group has ended. It must not call
// CUDA, because the call might wait for a stream that waits for a message.
func (in *inbox) deliverAll() {
	ranked.Waiting()
	w := in.own.wakeup()
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
	// The first spinPolls polls have no pause. The next yieldPolls polls yield the processor in
	// between.
	spinPolls, yieldPolls = 50, 200
	// idleSleep limits a sleep, which a peer's announcement ends early.
	idleSleep = 10 * time.Millisecond
)

// pause waits between two polls. A rank that announces a message wakes this rank, but the GPU that
// completes the message does not, so the sleep is short if an announced message is incomplete.
func (w *wakeup) pause(word uint32, polls int, announced bool) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
	default:
		sleep := idleSleep
		if announced {
			sleep = gpu.Nap
		}
		atomic.AddInt32(&w.sleeping, 1)
		sys.FutexWait(&w.word, word, sleep)
		atomic.AddInt32(&w.sleeping, -1)
	}
}

// deliverable removes the open receives whose messages have arrived and returns them. announced
// reports whether a message for a remaining Recv has been announced. more reports whether the
// goroutine must continue.
func (in *inbox) deliverable() (ready []*End, announced, more bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-in.ended:
		in.running = false
		return nil, false, false, nil
	default:
	}
	err = in.readHeaders()
	remaining := in.open[:0]
	for _, e := range in.open {
		accepted := false
		if err == nil {
			accepted, err = in.accept(e)
		}
		if accepted {
			ready = append(ready, e)
			continue
		}
		announced = announced || e.announced != nil
		remaining = append(remaining, e)
	}
	clear(in.open[len(remaining):])
	in.open = remaining
	announced = announced || in.anySource > 0 && len(in.unmatched) > 0
	in.running = len(remaining) > 0 || len(ready) > 0
	return ready, announced, in.running, err
}

// accept fills in the descriptor of a Recv and reports whether it did. The message must have
// arrived, and the peer's memory must be mapped. No earlier message with the same slot or
// descriptor may be pending. in.mu is held.
func (in *inbox) accept(e *End) (accepted bool, err error) {
	a := e.announced
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
	e.descriptor.Taken = uint64(in.own.deviceAddress(&in.own.flags(a.source).taken[a.slot]))
	e.handle()
	a.handled, a.previous = true, nil
	return true, nil
}

// isComplete reports whether a message's data has arrived and will not be overwritten. in.mu is
// held.
func (in *inbox) isComplete(a *announcement) bool {
	return atomic.LoadUint32(&in.own.flags(a.source).full[a.slot]) == 1 && !in.released(a)
}

// released reports whether the sender may overwrite a message that has not been copied
// (End.release). in.mu is held.
func (in *inbox) released(a *announcement) bool {
	return a.replayed != 0 && atomic.LoadUint32(&in.own.ring(a.source).released) != 0
}

// claim claims a message for a Recv and reports whether it did. It fails if the sender has
// withdrawn the message. in.mu is held.
func (in *inbox) claim(a *announcement) bool {
	full := &in.own.flags(a.source).full[a.slot]
	if !atomic.CompareAndSwapUint32(full, 1, 0) {
		return false
	}
	if in.released(a) {
		atomic.StoreUint32(full, 1) // End.release waits for it
		return false
	}
	return true
}

// startCopy lets the stream of a Recv copy the accepted message.
func (in *inbox) startCopy(e *End) {
	if arrived := e.plan.Arrived; arrived != nil {
		if err := driver.Guard("Call.Arrived", func() { arrived(e.source) }); err != nil {
			_ = in.plane.Fail(err)
		}
		in.device.Streams.Order.Add(1)
	}
	atomic.StoreUint32(&e.descriptor.Go, 1)
}
