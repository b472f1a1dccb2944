package host

import (
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/ranked"
	"symmem/internal/reduce"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// outlet is this rank's end of the pipe to a peer. Sends of several streams put their frames in as
// they come: the receiver tells them apart.
type outlet struct {
	mu     ranked.Mutex[outletMu]
	frame  uint64             // frames posted; guarded by mu
	inPipe [pairFrames]posted // what they hold; guarded by mu
	spilt  []*send            // what Sends have left to the pusher; guarded by mu
	bytes  int64              // of spilt; guarded by mu
	idle   chan struct{}      // closed when spilt runs empty; nil while it is; guarded by mu
}

// posted names the message of a frame.
type posted struct {
	tag    int
	number uint64
}

// send is a Send under way.
type send struct {
	letter
	out    *outlet
	number uint64
	// data are the bytes of the message from the offset base on; they lie in spill once the message
	// was left to the pusher.
	data  unsafe.Pointer
	base  int64
	spill []byte
	moved int64
	begun bool // the first frame is posted
}

func (s *send) finished() bool { return s.begun && s.moved == s.plan.bytes }

// box is the pipe; the caller has entered the communicator.
func (s *send) box() *pair {
	return s.c.pipe(s.c.cfg.Rank, s.plan.Root)
}

// soon posts what there is room for.
func (s *send) soon() (done bool, err error) {
	if err := s.c.Enter(); err != nil {
		return false, err
	}
	defer s.c.Leave()
	return s.advance(s.box()), nil
}

// advance posts frames as long as there is room, and reports whether that was all.
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

// room reports whether the next frame has room.
func (s *send) room(box *pair) bool {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.frame-spin.LoadAcquire64(&box.taken) < pairFrames
}

// run sends the message, or leaves what the receiver does not take to the pusher.
func (s *send) run() error {
	if err := s.c.Enter(); err != nil {
		return err
	}
	defer s.c.Leave()
	if s.c.HasFailed() {
		return s.c.Cause()
	}
	box := s.box()
	for !s.advance(box) {
		full := s.lastFrame()
		if s.c.PollSoon(&box.taken, full+1-pairFrames) {
			continue
		}
		limit := sys.Monotonic() + uint64(s.patience())
		if err := s.await(box, func() bool { return sys.Monotonic() >= limit }); err != nil {
			return s.c.failed(err)
		}
		if !s.room(box) {
			return s.leave()
		}
	}
	return nil
}

// lastFrame is the number of the last frame that was posted.
func (s *send) lastFrame() uint64 {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.frame
}

// await waits for room, or until enough says so.
func (s *send) await(box *pair, enough func() bool) error {
	return s.c.AwaitMessage(s.waiting(func() bool { return s.room(box) || enough() }, s.plan.Root))
}

const (
	// sendPatience is how long a Send waits for a receiver that takes nothing.
	sendPatience = time.Millisecond
	// spillUnit is how much may lie in memory of the heap for one peer before that time doubles, so
	// that a sender which is always ahead is slowed down.
	spillUnit = 64 << 20
)

// patience is how long the Send waits now. It stays well below the timeout, since the receiver may
// be unable to go on before this rank's stream does.
func (s *send) patience() time.Duration {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	doublings := min(s.out.bytes/spillUnit, 20)
	return min(sendPatience<<doublings, s.c.device.cfg.Timeout/4)
}

// leave copies what is left of the message and gives it to the pusher, so that the stream goes on.
func (s *send) leave() error {
	left := s.plan.bytes - s.moved
	s.spill = make([]byte, max(1, left))
	reduce.Copy(unsafe.Pointer(&s.spill[0]), unsafe.Add(s.data, s.moved), int(left), reduce.Hint{})
	s.data, s.base = unsafe.Pointer(&s.spill[0]), s.moved
	if err := s.c.Enter(); err != nil {
		return err
	}
	o := s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spilt = append(o.spilt, s)
	o.bytes += left
	if o.idle != nil {
		s.c.Leave()
		return nil
	}
	o.idle = make(chan struct{})
	go func() {
		defer s.c.Leave()
		o.push()
	}()
	return nil
}

// push posts what Sends have left, in their order. After a fault it drops it.
func (o *outlet) push() {
	for {
		o.mu.Lock()
		if len(o.spilt) == 0 {
			close(o.idle)
			o.idle, o.spilt = nil, nil
			o.mu.Unlock()
			return
		}
		s := o.spilt[0]
		left := s.plan.bytes - s.moved
		o.mu.Unlock()
		s.finish()
		o.mu.Lock()
		o.spilt[0] = nil
		o.spilt = o.spilt[1:]
		o.bytes -= left
		o.mu.Unlock()
	}
}

// finish posts the rest of the message. A wait that fails fails the group.
func (s *send) finish() {
	box := s.box()
	for !s.advance(box) {
		if err := s.await(box, func() bool { return false }); err != nil {
			_ = s.c.Fail(err)
			return
		}
	}
}

// pushing returns what is closed when nothing is left to push, or nil if that is so.
func (o *outlet) pushing() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.idle
}

// untaken lists the messages in the pipe to a peer that has left the group.
func (o *outlet) untaken(c *communicator, peer int) []driver.MessageEnds {
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
