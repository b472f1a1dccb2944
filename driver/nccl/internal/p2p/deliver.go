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

// deliver has a goroutine look for messages as long as receives wait. in.mu is held.
func (in *inbox) deliver() {
	if in.running || in.stopped || len(in.open) == 0 {
		return
	}
	in.running = true
	in.delivering.Go(in.deliverAll)
}

// deliverAll delivers until no Recv waits, or the group has ended. It makes no call to CUDA, which
// may wait for a stream that waits for a message.
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
			_ = in.Plane.Fail(err)
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
	// spins is how many looks a goroutine takes in a row, and yieldsOf how many more between which it
	// lets others run.
	spins, yieldsOf = 50, 200
	// idleSleep is how long it sleeps where it will be woken.
	idleSleep = 10 * time.Millisecond
)

// pause passes the time between two looks. A rank that announces a message wakes this one; GPUs do
// not. announced reports whether a message has been announced whose data a GPU still writes.
func (b *wakeup) pause(word uint32, turn int, announced bool) {
	switch {
	case turn < spins && runtime.NumCPU() > 1:
	case turn < spins+yieldsOf:
		runtime.Gosched()
	default:
		slice := idleSleep
		if announced {
			slice = gpu.Nap
		}
		atomic.AddInt32(&b.sleeping, 1)
		sys.FutexWait(&b.word, word, slice)
		atomic.AddInt32(&b.sleeping, -1)
	}
}

// deliverable takes the receives whose messages are there off the list of those that are open. It
// reports whether the others include some whose message is announced, or whose stream has yet to
// come, and whether there are others.
func (in *inbox) deliverable() (ready []*End, announced, more bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	select {
	case <-in.Ended:
		in.running = false
		return nil, false, false, nil
	default:
	}
	err = in.readHeaders()
	rest := in.open[:0]
	for _, e := range in.open {
		can := false
		if err == nil {
			can, err = in.take(e)
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
	announced = announced || in.anywhere > 0 && len(in.unmatched) > 0
	in.running = len(rest) > 0 || len(ready) > 0
	return ready, announced, in.running, err
}

// take gives a Recv its message now, if that is there, no other one that needs the
// same words has to be copied before, and its memory is mapped. in.mu is held.
func (in *inbox) take(e *End) (can bool, err error) {
	l := e.announced
	if l == nil || !e.mayTake() || !l.next() || !in.isComplete(l) {
		return false, nil
	}
	if l.bytes > 0 {
		theirs := in.segmentOf(l)
		if theirs.bytes != int64(l.size) {
			return false, in.errInvalid(l)
		}
		if theirs.at == 0 {
			return false, theirs.failed
		}
		e.descriptor.From = uint64(theirs.at) + l.offset
	}
	if !in.claim(l) {
		return false, nil
	}
	e.descriptor.To, e.descriptor.Bytes = uint64(e.plan.Address), l.bytes
	e.descriptor.Taken = uint64(in.own.at(&in.own.flags(l.source).taken[l.slot]))
	e.handle()
	l.handled, l.before = true, nil
	return true, nil
}

// isComplete reports whether a message can be copied: it is there, and will stay. in.mu is held.
func (in *inbox) isComplete(l *announcement) bool {
	return atomic.LoadUint32(&in.own.flags(l.source).full[l.slot]) == 1 && !in.released(l)
}

// released reports whether the sender may write over a message that was not taken: see release.
// in.mu is held.
func (in *inbox) released(l *announcement) bool {
	return l.replayed != 0 && atomic.LoadUint32(&in.own.ring(l.source).released) != 0
}

// claim takes a message, unless its sender takes it back at the same time. in.mu is held.
func (in *inbox) claim(l *announcement) bool {
	full := &in.own.flags(l.source).full[l.slot]
	if !atomic.CompareAndSwapUint32(full, 1, 0) {
		return false
	}
	if in.released(l) {
		atomic.StoreUint32(full, 1) // so that release continues
		return false
	}
	return true
}

// startCopy lets the stream of a Recv that has its message go on.
func (in *inbox) startCopy(e *End) {
	if arrived := e.plan.Arrived; arrived != nil {
		if err := driver.Guard("Call.Arrived", func() { arrived(e.source) }); err != nil {
			_ = in.Plane.Fail(err)
		}
		in.Device.Streams.Order.Add(1)
	}
	atomic.StoreUint32(&e.descriptor.Go, 1)
}
