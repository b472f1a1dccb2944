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

// sendPipe writes to the pipe to a peer. The frames of Sends on different streams may be
// interleaved; the receiver sorts the frames by message.
type sendPipe struct {
	mu      ranked.Mutex[sendPipeMu]
	frame   uint64                 // the number of the last posted frame; guarded by mu
	owners  [pairFrames]frameOwner // the message of each frame in the pipe; guarded by mu
	read    uint64                 // last frame that had been read at the time stalled; guarded by mu
	stalled uint64                 // time at which the pipe was first found full; guarded by mu
	backlog []*send                // Sends that push has to finish; guarded by mu
	bytes   int64                  // size of the backlog; guarded by mu
	drained chan struct{}          // closed when the backlog empties; nil if empty; guarded by mu
}

type frameOwner struct {
	tag    int
	number uint64
}

type send struct {
	messageCall
	out    *sendPipe
	number uint64
	// data points to the byte at offset base of the message. deferRest makes it point to copied.
	data   unsafe.Pointer
	base   int64
	copied []byte
	moved  int64 // bytes in posted frames
	begun  bool  // whether the first frame has been posted
}

func (s *send) finished() bool { return s.begun && s.moved == s.plan.bytes }

// box returns the pipe's shared memory. The caller must have called BeginUse.
func (s *send) box() *pair {
	return s.c.pipe(s.c.cfg.Rank, s.plan.Root)
}

// tryNow posts frames while there is room.
func (s *send) tryNow() (done bool, err error) {
	if err := s.c.BeginUse(); err != nil {
		return false, err
	}
	defer s.c.EndUse()
	return s.advance(s.box()), nil
}

func (s *send) advance(box *pair) bool {
	for !s.finished() {
		if !s.step(box) {
			return false
		}
	}
	return true
}

func (s *send) step(box *pair) bool {
	o := s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frame-spin.LoadAcquire64(&box.read) >= pairFrames {
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
	o.owners[o.frame%pairFrames] = frameOwner{s.plan.Tag, s.number}
	spin.StoreRelease64(&f.posted, o.frame)
	s.c.Wake(s.plan.Root)
	s.moved += bytes
	s.begun = true
	return true
}

func (s *send) room(box *pair) bool {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.frame-spin.LoadAcquire64(&box.read) < pairFrames
}

// run sends the message. If the receiver does not read it in time, run leaves the rest of the
// message to push.
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
		if !s.expired(box, 0) && s.c.PollBriefly(&box.read, s.lastFrame()+1-pairFrames) {
			continue
		}
		begin := sys.Monotonic()
		if err := s.await(box, func() bool { return s.expired(box, begin) }); err != nil {
			return s.c.failWith(err)
		}
		if !s.room(box) {
			return s.deferRest()
		}
	}
	return nil
}

// expired reports whether a Send should stop waiting and leave the rest of its message to push.
// begin is the time at which the Send began to wait, or 0 if it has not waited yet.
func (s *send) expired(box *pair, begin uint64) bool {
	now, timeout := sys.Monotonic(), s.c.cfg.Timeout.Get()
	if begin != 0 && now-begin > uint64(timeout/4) {
		return true
	}
	return now >= s.out.waitEnd(spin.LoadAcquire64(&box.read), now, timeout)
}

func (s *send) lastFrame() uint64 {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.frame
}

// await waits until there is room for a frame or expired returns true.
func (s *send) await(box *pair, expired func() bool) error {
	ready := func() bool { return s.room(box) || expired() }
	return s.c.AwaitMessage(s.messageWait(ready, s.plan.Root))
}

const (
	// sendWait limits how long Sends wait for a receiver that reads no frames. The time is measured
	// from when a Send first finds the pipe full until the receiver reads a frame, and applies to
	// all Sends together. Two ranks that send each other many messages before they receive any
	// therefore wait this long only once.
	sendWait = time.Millisecond
	// longestSendWait limits the wait for large backlogs. The wait is also limited to a fraction of
	// the timeout, because other ranks may be waiting for this rank's stream.
	longestSendWait = time.Second
	// The wait doubles whenever the backlog grows by backlogUnit bytes, which slows down a sender
	// that is always ahead of its receiver.
	backlogUnit = 64 << 20
)

// waitEnd returns the time at which a Send stops waiting for a receiver that has read the given
// number of frames.
func (o *sendPipe) waitEnd(read, now uint64, timeout time.Duration) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if read != o.read || o.stalled == 0 {
		o.read, o.stalled = read, now
	}
	wait := sendWait << min(o.bytes/backlogUnit, 20)
	return o.stalled + uint64(min(wait, longestSendWait, timeout/16))
}

// deferRest copies the rest of the message, so that the stream can continue while push sends the
// copy.
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
	if o.drained != nil {
		s.c.EndUse()
		return nil
	}
	o.drained = make(chan struct{})
	go func() {
		defer s.c.EndUse()
		o.push()
	}()
	return nil
}

func (o *sendPipe) push() {
	for {
		o.mu.Lock()
		if len(o.backlog) == 0 {
			close(o.drained)
			o.drained, o.backlog = nil, nil
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

// finish posts the rest of the message. A timeout fails the group only if the group is closing:
// before that, no stream waits for the message, so the receiver may be arbitrarily late. Any
// other error fails the group immediately.
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

func (o *sendPipe) backlogDone() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.drained
}

// unreceived returns the messages that were still in the pipe when the peer left the group.
func (o *sendPipe) unreceived(c *communicator, peer int) []driver.MessageEnds {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frame == 0 || !c.HasLeft(peer) {
		return nil
	}
	read := spin.LoadAcquire64(&c.pipe(c.cfg.Rank, peer).read)
	var all []driver.MessageEnds
	for n := o.frame; n > read && n+pairFrames > o.frame; n-- {
		p := o.owners[n%pairFrames]
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
