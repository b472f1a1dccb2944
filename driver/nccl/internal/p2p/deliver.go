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

// deliver starts a goroutine that delivers messages, unless it is running or no Recv is waiting.
// in.mu is held.
func (in *inbox) deliver() {
	if in.running || in.stopped || len(in.open) == 0 {
		return
	}
	in.running = true
	in.delivering.Go(in.deliverAll)
}

// deliverAll delivers messages until no Recv is waiting, or the group has ended. It must not call
// CUDA: the call might wait for a stream that waits for a message.
func (in *inbox) deliverAll() {
	ranked.Waiting()
	b := in.own.wakeup()
	for turn := 0; ; turn++ {
		word := atomic.LoadUint32(&b.word)
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
			turn = 0
		default:
			b.pause(word, turn, announced)
		}
	}
}

const (
	// spinPolls is the number of polls without a pause; yieldPolls is the number of later polls that
	// only yield the processor in between.
	spinPolls, yieldPolls = 50, 200
	// idleSleep bounds a sleep that a peer's announcement ends early.
	idleSleep = 10 * time.Millisecond
)

// pause waits between two polls. Ranks that announce a message wake this one, but GPUs do not, so
// the sleep is short if an announced message is incomplete.
func (b *wakeup) pause(word uint32, turn int, announced bool) {
	switch {
	case turn < spinPolls && runtime.NumCPU() > 1:
	case turn < spinPolls+yieldPolls:
		runtime.Gosched()
	default:
		sleep := idleSleep
		if announced {
			sleep = gpu.Nap
		}
		atomic.AddInt32(&b.sleeping, 1)
		sys.FutexWait(&b.word, word, sleep)
		atomic.AddInt32(&b.sleeping, -1)
	}
}

// deliverable removes the receives whose messages have arrived from the open ones and returns them.
// announced reports whether a message of the remaining ones has been announced, and more whether
// the goroutine has to continue.
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
	rest := in.open[:0]
	for _, e := range in.open {
		can := false
		if err == nil {
			can, err = in.accept(e)
		}
		if can {
			ready = append(ready, e)
			continue
		}
		announced = announced || e.announced != nil
		rest = append(rest, e)
	}
	clear(in.open[len(rest):])
	in.open = rest
	announced = announced || in.anySource > 0 && len(in.unmatched) > 0
	in.running = len(rest) > 0 || len(ready) > 0
	return ready, announced, in.running, err
}

// accept fills in the descriptor of a Recv if its message has arrived, no earlier message in the
// same slot or descriptor is pending, and the peer's memory is mapped. in.mu is held.
func (in *inbox) accept(e *End) (can bool, err error) {
	a := e.announced
	if a == nil || !e.canAccept() || !a.next() || !in.isComplete(a) {
		return false, nil
	}
	if a.bytes > 0 {
		theirs := in.segmentOf(a)
		if theirs.bytes != int64(a.size) {
			return false, in.errInvalid(a)
		}
		if theirs.at == 0 {
			return false, theirs.failed
		}
		e.descriptor.From = uint64(theirs.at) + a.offset
	}
	if !in.claim(a) {
		return false, nil
	}
	e.descriptor.To, e.descriptor.Bytes = uint64(e.plan.Address), a.bytes
	e.descriptor.Taken = uint64(in.own.at(&in.own.flags(a.source).taken[a.slot]))
	e.handle()
	a.handled, a.before = true, nil
	return true, nil
}

// isComplete reports whether the data of a message has arrived and will not be overwritten. in.mu
// is held.
func (in *inbox) isComplete(a *announcement) bool {
	return atomic.LoadUint32(&in.own.flags(a.source).full[a.slot]) == 1 && !in.released(a)
}

// released reports whether the sender may overwrite a message that was not taken (End.release).
// in.mu is held.
func (in *inbox) released(a *announcement) bool {
	return a.replayed != 0 && atomic.LoadUint32(&in.own.ring(a.source).released) != 0
}

// claim marks a message as taken, unless its sender has taken it back. in.mu is held.
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

// startCopy lets the stream of a Recv copy the message that was accepted for it.
func (in *inbox) startCopy(e *End) {
	if arrived := e.plan.Arrived; arrived != nil {
		if err := driver.Guard("Call.Arrived", func() { arrived(e.source) }); err != nil {
			_ = in.plane.Fail(err)
		}
		in.device.Streams.Order.Add(1)
	}
	atomic.StoreUint32(&e.descriptor.Go, 1)
}
