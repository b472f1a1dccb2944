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

// sendPipe writes to the pipe to a peer, a ring of frames in shared memory. Frames of Sends on
// different streams may be interleaved.
type sendPipe struct {
	mu           ranked.Mutex[sendPipeMu]
	lastFrame    uint64                 // the last posted frame; guarded by mu
	owners       [pipeFrames]frameOwner // the message of each frame; guarded by mu
	readWhenFull uint64                 // what the receiver had read at fullSince; guarded by mu
	fullSince    uint64                 // when a Send found the pipe full; guarded by mu
	backlog      []*sendCall            // Sends that push has to finish; guarded by mu
	backlogBytes int64                  // guarded by mu
	backlogSent  chan struct{}          // nil without a backlog; guarded by mu
}

type frameOwner struct {
	tag    int
	number uint64
}

type sendCall struct {
	messageCall
	pipe   *sendPipe
	number uint64
	// data points to the byte at offset base of the message.
	data   unsafe.Pointer
	base   int64
	copied []byte
	moved  int64 // bytes in posted frames
	begun  bool  // whether the first frame has been posted
}

func (s *sendCall) finished() bool { return s.begun && s.moved == s.plan.bytes }

// shared requires that the caller has called BeginUse.
func (s *sendCall) shared() *sharedPipe {
	return s.comm.pipe(s.comm.cfg.Rank, s.plan.Root)
}

func (s *sendCall) tryNow() (done bool, err error) {
	if err := s.comm.BeginUse(); err != nil {
		return false, err
	}
	defer s.comm.EndUse()
	return s.advance(s.shared()), nil
}

func (s *sendCall) advance(shared *sharedPipe) bool {
	for !s.finished() {
		if !s.step(shared) {
			return false
		}
	}
	return true
}

func (s *sendCall) step(shared *sharedPipe) bool {
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.lastFrame-spin.LoadAcquire64(&shared.read) >= pipeFrames {
		return false
	}
	pipe.lastFrame++
	f := &shared.frames[pipe.lastFrame%pipeFrames]
	bytes := min(s.plan.bytes-s.moved, frameBytes)
	reduce.Copy(unsafe.Pointer(&f.data), unsafe.Add(s.data, s.moved-s.base), int(bytes),
		reduce.Hint{})
	f.header = frameHeader{
		tag: uint64(s.plan.Tag), number: s.number, total: uint64(s.plan.bytes),
		offset: uint64(s.moved), digest: s.plan.Digest, after: s.after,
		dataType: uint64(s.plan.DataType),
	}
	pipe.owners[pipe.lastFrame%pipeFrames] = frameOwner{s.plan.Tag, s.number}
	spin.StoreRelease64(&f.posted, pipe.lastFrame)
	s.comm.Wake(s.plan.Root)
	s.moved += bytes
	s.begun = true
	return true
}

func (s *sendCall) room(shared *sharedPipe) bool {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return s.pipe.lastFrame-spin.LoadAcquire64(&shared.read) < pipeFrames
}

// run sends the message. If the receiver does not read the message in time, push sends the rest.
func (s *sendCall) run() error {
	if err := s.comm.BeginUse(); err != nil {
		return err
	}
	defer s.comm.EndUse()
	if s.comm.HasFailed() {
		return s.comm.Cause()
	}
	shared := s.shared()
	for !s.advance(shared) {
		if !s.expired(shared, 0) && s.comm.PollBriefly(&shared.read, s.lastFrame()+1-pipeFrames) {
			continue
		}
		begin := sys.Monotonic()
		if err := s.await(shared, func() bool { return s.expired(shared, begin) }); err != nil {
			return s.comm.failWith(err)
		}
		if !s.room(shared) {
			return s.deferRest()
		}
	}
	return nil
}

// expired reports whether a Send should leave the rest of its message to push. begin is the time at
// which the Send began to wait. It is 0 if the Send has not waited yet.
func (s *sendCall) expired(shared *sharedPipe, begin uint64) bool {
	now, timeout := sys.Monotonic(), s.comm.cfg.Timeout.Get()
	if begin != 0 && now-begin > uint64(timeout/4) {
		return true
	}
	return now >= s.pipe.waitEnd(spin.LoadAcquire64(&shared.read), now, timeout)
}

func (s *sendCall) lastFrame() uint64 {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return s.pipe.lastFrame
}

func (s *sendCall) await(shared *sharedPipe, expired func() bool) error {
	ready := func() bool { return s.room(shared) || expired() }
	return s.comm.AwaitMessage(s.messageWait(ready, s.plan.Root))
}

const (
	// sendWait limits how long Sends wait for a receiver that reads no frames, from when a Send
	// first finds the pipe full. The limit applies to all Sends together, so two ranks that send
	// each other many messages before they receive any wait this long only once.
	sendWait = time.Millisecond
	// longestSendWait limits the wait for large backlogs.
	longestSendWait = time.Second
	// The wait doubles with every backlogUnit bytes of backlog, to slow down a sender that is
	// always ahead of its receiver.
	backlogUnit = 64 << 20
)

// waitEnd returns the time at which a Send stops waiting. A Send waits for only a fraction of the
// timeout, because other ranks may be waiting for this rank's stream.
func (pipe *sendPipe) waitEnd(read, now uint64, timeout time.Duration) uint64 {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if read != pipe.readWhenFull || pipe.fullSince == 0 {
		pipe.readWhenFull, pipe.fullSince = read, now
	}
	wait := sendWait << min(pipe.backlogBytes/backlogUnit, 20)
	return pipe.fullSince + uint64(min(wait, longestSendWait, timeout/16))
}

// deferRest copies the rest of the message, so that the stream can continue while push sends it.
func (s *sendCall) deferRest() error {
	left := s.plan.bytes - s.moved
	s.copied = make([]byte, max(1, left))
	reduce.Copy(unsafe.Pointer(&s.copied[0]), unsafe.Add(s.data, s.moved), int(left), reduce.Hint{})
	s.data, s.base = unsafe.Pointer(&s.copied[0]), s.moved
	if err := s.comm.BeginUse(); err != nil {
		return err
	}
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	pipe.backlog = append(pipe.backlog, s)
	pipe.backlogBytes += left
	if pipe.backlogSent != nil {
		s.comm.EndUse()
		return nil
	}
	pipe.backlogSent = make(chan struct{})
	go func() {
		defer s.comm.EndUse()
		pipe.push()
	}()
	return nil
}

func (pipe *sendPipe) push() {
	for {
		pipe.mu.Lock()
		if len(pipe.backlog) == 0 {
			close(pipe.backlogSent)
			pipe.backlogSent, pipe.backlog = nil, nil
			pipe.mu.Unlock()
			return
		}
		s := pipe.backlog[0]
		left := s.plan.bytes - s.moved
		pipe.mu.Unlock()
		s.finish()
		pipe.mu.Lock()
		pipe.backlog[0] = nil
		pipe.backlog = pipe.backlog[1:]
		pipe.backlogBytes -= left
		pipe.mu.Unlock()
	}
}

// finish posts the rest of the message. Unless the group is closing, it ignores timeouts: no stream
// waits for the message, so the receiver may be arbitrarily late.
func (s *sendCall) finish() {
	shared := s.shared()
	for !s.advance(shared) {
		closing := s.comm.messages.closing.Load()
		err := s.await(shared, func() bool { return false })
		late := errors.As(err, new(*driver.TimeoutError)) && !closing && !s.comm.HasFailed()
		if err != nil && !late {
			_ = s.comm.Fail(err)
			return
		}
	}
}

func (pipe *sendPipe) backlogDone() <-chan struct{} {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	return pipe.backlogSent
}

// unreceived returns the messages that were still in the pipe when the peer left the group.
func (pipe *sendPipe) unreceived(c *communicator, peer int) []driver.MessageEnds {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.lastFrame == 0 || !c.HasLeft(peer) {
		return nil
	}
	read := spin.LoadAcquire64(&c.pipe(c.cfg.Rank, peer).read)
	var all []driver.MessageEnds
	for n := pipe.lastFrame; n > read && n+pipeFrames > pipe.lastFrame; n-- {
		owner := pipe.owners[n%pipeFrames]
		ends := driver.MessageEnds{
			From: c.cfg.Ranks[c.cfg.Rank], To: c.cfg.Ranks[peer],
			Tag: owner.tag, Number: owner.number, Sent: 1,
		}
		if len(all) == 0 || all[len(all)-1] != ends {
			all = append(all, ends)
		}
	}
	return all
}
