package host

import (
	"errors"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/ranked"
	"symmem/internal/reduce"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// sendPipe writes the pipe to a peer. Sends of several streams may write frames in any order; the
// receiver sorts them.
type sendPipe struct {
	mu      ranked.Mutex[sendPipeMu]
	frame   uint64             // the number of the last posted frame; guarded by mu
	inPipe  [pairFrames]posted // the messages of the frames; guarded by mu
	taken   uint64             // the last frame that was taken at the time stalled; guarded by mu
	stalled uint64             // the time since which the pipe is full; guarded by mu
	backlog []*send            // Sends that push has to finish; guarded by mu
	bytes   int64              // of backlog; guarded by mu
	idle    chan struct{}      // closed when the backlog is empty, then nil; guarded by mu
}

// posted identifies the message of a frame.
type posted struct {
	tag    int
	number uint64
}

// send runs a Send.
type send struct {
	messageCall
	out    *sendPipe
	number uint64
	// data points to the message from the offset base on. After deferRest it points to copied.
	data   unsafe.Pointer
	base   int64
	copied []byte
	moved  int64
	begun  bool // the first frame is posted
}

// finished reports whether all frames are posted.
func (s *send) finished() bool { return s.begun && s.moved == s.plan.bytes }

// box returns the shared memory of the pipe. The caller has called BeginUse.
func (s *send) box() *pair {
	return s.c.pipe(s.c.cfg.Rank, s.plan.Root)
}

// tryNow posts as many frames as there is room for.
func (s *send) tryNow() (done bool, err error) {
	if err := s.c.BeginUse(); err != nil {
		return false, err
	}
	defer s.c.EndUse()
	return s.advance(s.box()), nil
}

// advance posts frames as long as there is room. It reports whether all frames are posted.
func (s *send) advance(box *pair) bool {
	for !s.finished() {
		if !s.step(box) {
			return false
		}
	}
	return true
}

// step posts the next frame if there is room for it.
func (s *send) step(box *pair) bool {
	o := s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frame-spin.LoadAcquire64(&box.taken) >= pairFrames {
		return false
	}
	o.frame++
	f := &box.frames[o.frame%pairFrames]
	bytes := min(s.plan.bytes-s.moved, frameBytes)
	reduce.Copy(unsafe.Pointer(&f.data), unsafe.Add(s.data, s.moved-s.base), int(bytes),
		reduce.Hint{})
	f.header = frameHeader{
		tag: uint64(s.plan.Tag), number: s.number, total: uint64(s.plan.bytes),
		offset: uint64(s.moved), digest: s.plan.Digest, after: s.after,
		dataType: uint64(s.plan.DataType),
	}
	o.inPipe[o.frame%pairFrames] = posted{s.plan.Tag, s.number}
	spin.StoreRelease64(&f.posted, o.frame)
	s.c.Wake(s.plan.Root)
	s.moved += bytes
	s.begun = true
	return true
}

// room reports whether there is room for the next frame.
func (s *send) room(box *pair) bool {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.frame-spin.LoadAcquire64(&box.taken) < pairFrames
}

// run sends the message. If the receiver does not take it in time, push sends the rest.
func (s *send) run() error {
	if err := s.c.BeginUse(); err != nil {
		return err
	}
	defer s.c.EndUse()
	if s.c.HasFailed() {
		return s.c.Cause()
	}
	box := s.box()
	for !s.advance(box) {
		if !s.impatient(box, 0) && s.c.PollSoon(&box.taken, s.lastFrame()+1-pairFrames) {
			continue
		}
		begin := sys.Monotonic()
		if err := s.await(box, func() bool { return s.impatient(box, begin) }); err != nil {
			return s.c.failed(err)
		}
		if !s.room(box) {
			return s.deferRest()
		}
	}
	return nil
}

// impatient reports whether a Send that has waited since begin, or not at all if begin is 0,
// leaves the rest of its message to push.
func (s *send) impatient(box *pair, begin uint64) bool {
	now, timeout := sys.Monotonic(), s.c.device.cfg.Timeout
	if begin != 0 && now-begin > uint64(timeout/4) {
		return true
	}
	return now >= s.out.patience(spin.LoadAcquire64(&box.taken), now, timeout)
}

// lastFrame returns the number of the last posted frame.
func (s *send) lastFrame() uint64 {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.frame
}

// await waits for room, or until enough returns true.
func (s *send) await(box *pair, enough func() bool) error {
	return s.c.AwaitMessage(s.waiting(func() bool { return s.room(box) || enough() }, s.plan.Root))
}

const (
	// sendWait is the time for which Sends wait for a receiver that takes no frames. It begins when
	// the first Send finds the pipe full, and applies to all Sends until the receiver takes a frame.
	// Two ranks that send each other many messages before they receive lose this time only once.
	sendWait = time.Millisecond
	// longestSendWait bounds this time, as does a fraction of the timeout, since other ranks may wait
	// for this rank's stream meanwhile.
	longestSendWait = time.Second
	// backlogUnit is the size of the backlog at which this time doubles, in order to slow down a
	// sender that is always ahead.
	backlogUnit = 64 << 20
)

// patience returns the deadline of a Send for a receiver that has taken the given number of
// frames.
func (o *sendPipe) patience(taken, now uint64, timeout time.Duration) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if taken != o.taken || o.stalled == 0 {
		o.taken, o.stalled = taken, now
	}
	wait := sendWait << min(o.bytes/backlogUnit, 20)
	return o.stalled + uint64(min(wait, longestSendWait, timeout/16))
}

// deferRest copies the rest of the message, for push, so that the stream can continue.
func (s *send) deferRest() error {
	left := s.plan.bytes - s.moved
	s.copied = make([]byte, max(1, left))
	reduce.Copy(unsafe.Pointer(&s.copied[0]), unsafe.Add(s.data, s.moved), int(left), reduce.Hint{})
	s.data, s.base = unsafe.Pointer(&s.copied[0]), s.moved
	if err := s.c.BeginUse(); err != nil {
		return err
	}
	o := s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.backlog = append(o.backlog, s)
	o.bytes += left
	if o.idle != nil {
		s.c.EndUse()
		return nil
	}
	o.idle = make(chan struct{})
	go func() {
		defer s.c.EndUse()
		o.push()
	}()
	return nil
}

// push finishes the Sends in the backlog, in order. After a fault it discards them.
func (o *sendPipe) push() {
	for {
		o.mu.Lock()
		if len(o.backlog) == 0 {
			close(o.idle)
			o.idle, o.backlog = nil, nil
			o.mu.Unlock()
			return
		}
		s := o.backlog[0]
		left := s.plan.bytes - s.moved
		o.mu.Unlock()
		s.finish()
		o.mu.Lock()
		o.backlog[0] = nil
		o.backlog = o.backlog[1:]
		o.bytes -= left
		o.mu.Unlock()
	}
}

// finish posts the rest of the message. No stream waits for it, so a timeout does not fail the
// group before it closes: the receiver may be late, as for messages that fit into the pipe. Other
// errors of the wait fail the group.
func (s *send) finish() {
	box := s.box()
	for !s.advance(box) {
		closing := s.c.messages.closing.Load()
		err := s.await(box, func() bool { return false })
		late := errors.As(err, new(*driver.TimeoutError)) && !closing && !s.c.HasFailed()
		if err != nil && !late {
			_ = s.c.Fail(err)
			return
		}
	}
}

// pushing returns a channel that is closed when the backlog is empty, or nil if it is empty.
func (o *sendPipe) pushing() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle
}

// unreceived returns the messages in the pipe to a peer that has left the group.
func (o *sendPipe) unreceived(c *communicator, peer int) []driver.MessageEnds {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frame == 0 || !c.HasLeft(peer) {
		return nil
	}
	taken := spin.LoadAcquire64(&c.pipe(c.cfg.Rank, peer).taken)
	var all []driver.MessageEnds
	for n := o.frame; n > taken && n+pairFrames > o.frame; n-- {
		p := o.inPipe[n%pairFrames]
		ends := driver.MessageEnds{
			From: c.cfg.Ranks[c.cfg.Rank], To: c.cfg.Ranks[peer], Tag: p.tag, Number: p.number,
			Sent: 1,
		}
		if len(all) == 0 || all[len(all)-1] != ends {
			all = append(all, ends)
		}
	}
	return all
}
