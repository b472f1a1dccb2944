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

// sendPipe writes frames to a peer. Frames of Sends on different streams may be interleaved.
type sendPipe struct {
	mu            ranked.Mutex[sendPipeMu] // guards the other fields
	lastFrame     uint64
	frameMessages [pipeFrames]frameMessage
	lastReadFrame uint64      // the receiver's last frame at fullSince
	fullSince     uint64      // when a Send found the pipe full
	backlog       []*sendCall // Sends that sendBacklog must finish
	backlogBytes  int64
	backlogSent   chan struct{} // nil without a backlog
}

type frameMessage struct {
	tag    int
	number uint64
}

type sendCall struct {
	messageCall
	pipe   *sendPipe
	number uint64
	// data points to the byte at offset dataOffset of the message.
	data        unsafe.Pointer
	dataOffset  int64
	copiedData  []byte
	postedBytes int64
	hasBegun    bool // the first frame has been posted
}

func (s *sendCall) isPosted() bool { return s.hasBegun && s.postedBytes == s.plan.bytes }

// The caller must have called BeginUse.
func (s *sendCall) shared() *sharedPipe {
	return s.comm.pipe(s.comm.cfg.Rank, s.plan.Root)
}

func (s *sendCall) transferNow(bool) (done bool, err error) {
	if err := s.comm.BeginUse(); err != nil {
		return false, err
	}
	defer s.comm.EndUse()
	return s.postFrames(s.shared()), nil
}

func (s *sendCall) postFrames(shared *sharedPipe) bool {
	for !s.isPosted() {
		if !s.postFrame(shared) {
			return false
		}
	}
	return true
}

func (s *sendCall) postFrame(shared *sharedPipe) bool {
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.lastFrame-spin.LoadAcquire64(&shared.read) >= pipeFrames {
		return false
	}
	pipe.lastFrame++
	f := &shared.frames[pipe.lastFrame%pipeFrames]
	bytes := min(s.plan.bytes-s.postedBytes, frameBytes)
	reduce.Copy(unsafe.Pointer(&f.data), unsafe.Add(s.data, s.postedBytes-s.dataOffset), int(bytes),
		reduce.Hint{})
	f.header = frameHeader{
		tag: uint64(s.plan.Tag), number: s.number, total: uint64(s.plan.bytes),
		offset: uint64(s.postedBytes), digest: s.plan.Digest, priorCollectives: s.priorCollectives,
		dataType: uint64(s.plan.DataType),
	}
	pipe.frameMessages[pipe.lastFrame%pipeFrames] = frameMessage{s.plan.Tag, s.number}
	spin.StoreRelease64(&f.posted, pipe.lastFrame)
	s.comm.Wake(s.plan.Root)
	s.postedBytes += bytes
	s.hasBegun = true
	return true
}

func (s *sendCall) hasRoom(shared *sharedPipe) bool {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return s.pipe.lastFrame-spin.LoadAcquire64(&shared.read) < pipeFrames
}

// run sends the message. If the receiver does not read it in time, sendBacklog sends the rest.
func (s *sendCall) run() error {
	if err := s.comm.BeginUse(); err != nil {
		return err
	}
	defer s.comm.EndUse()
	if s.comm.HasFailed() {
		return s.comm.Cause()
	}
	shared := s.shared()
	for !s.postFrames(shared) {
		if !s.shouldDefer(shared, 0) &&
			s.comm.PollBriefly(&shared.read, s.lastFrame()+1-pipeFrames) {
			continue
		}
		waitBegin := sys.Monotonic()
		err := s.waitForRoom(shared, func() bool { return s.shouldDefer(shared, waitBegin) })
		if err != nil {
			return s.comm.failWith(err)
		}
		if !s.hasRoom(shared) {
			return s.deferRest()
		}
	}
	return nil
}

// shouldDefer reports whether sendBacklog should send the rest of the message. waitBegin is 0
// before the Send has waited.
func (s *sendCall) shouldDefer(shared *sharedPipe, waitBegin uint64) bool {
	now, timeout := sys.Monotonic(), s.comm.cfg.Timeout.Get()
	if waitBegin != 0 && now-waitBegin > uint64(timeout/4) {
		return true
	}
	restBytes := s.plan.bytes - s.postedBytes
	return now >= s.pipe.waitDeadline(spin.LoadAcquire64(&shared.read), now, restBytes, timeout)
}

func (s *sendCall) lastFrame() uint64 {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return s.pipe.lastFrame
}

func (s *sendCall) waitForRoom(shared *sharedPipe, shouldDefer func() bool) error {
	ready := func() bool { return s.hasRoom(shared) || shouldDefer() }
	return s.comm.AwaitMessage(s.messageWait(ready, s.plan.Root))
}

const (
	// minSendWait is the shortest time that Sends wait for a receiver that reads no frames, counted
	// from the time at which a Send finds the pipe full. All Sends together wait only once, even if
	// two ranks send each other many messages before they receive any.
	minSendWait = time.Millisecond
	// A Send waits for about as long as it would take to copy the rest of its message.
	copyTimePerByte = time.Nanosecond
	longestSendWait = time.Second
	// The wait doubles for each backlogUnit bytes of backlog, to slow down a sender that is always
	// ahead of its receiver.
	backlogUnit = 64 << 20
)

// waitDeadline returns the time at which a Send stops waiting. A Send waits for only a fraction of
// the timeout, because other ranks may be waiting for this rank's stream.
func (pipe *sendPipe) waitDeadline(
	read, now uint64, restBytes int64, timeout time.Duration,
) uint64 {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if read != pipe.lastReadFrame || pipe.fullSince == 0 {
		pipe.lastReadFrame, pipe.fullSince = read, now
	}
	wait := min(max(minSendWait, time.Duration(restBytes)*copyTimePerByte), longestSendWait)
	wait <<= min(pipe.backlogBytes/backlogUnit, 20)
	return pipe.fullSince + uint64(min(wait, longestSendWait, timeout/16))
}

// deferRest copies the rest of the message, which sendBacklog then sends.
func (s *sendCall) deferRest() error {
	restBytes := s.plan.bytes - s.postedBytes
	s.copiedData = make([]byte, max(1, restBytes))
	reduce.Copy(unsafe.Pointer(&s.copiedData[0]), unsafe.Add(s.data, s.postedBytes),
		int(restBytes), reduce.Hint{})
	s.data, s.dataOffset = unsafe.Pointer(&s.copiedData[0]), s.postedBytes
	if err := s.comm.BeginUse(); err != nil {
		return err
	}
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	pipe.backlog = append(pipe.backlog, s)
	pipe.backlogBytes += restBytes
	if pipe.backlogSent != nil {
		s.comm.EndUse()
		return nil
	}
	pipe.backlogSent = make(chan struct{})
	go func() {
		defer s.comm.EndUse()
		pipe.sendBacklog()
	}()
	return nil
}

func (pipe *sendPipe) sendBacklog() {
	for {
		pipe.mu.Lock()
		if len(pipe.backlog) == 0 {
			close(pipe.backlogSent)
			pipe.backlogSent, pipe.backlog = nil, nil
			pipe.mu.Unlock()
			return
		}
		s := pipe.backlog[0]
		restBytes := s.plan.bytes - s.postedBytes
		pipe.mu.Unlock()
		s.sendRest()
		pipe.mu.Lock()
		pipe.backlog[0] = nil
		pipe.backlog = pipe.backlog[1:]
		pipe.backlogBytes -= restBytes
		pipe.mu.Unlock()
	}
}

// sendRest ignores timeouts unless the group is closing, because no stream waits for the message.
func (s *sendCall) sendRest() {
	shared := s.shared()
	for !s.postFrames(shared) {
		isClosing := s.comm.messages.isClosing.Load()
		err := s.waitForRoom(shared, func() bool { return false })
		hasTimedOut := errors.As(err, new(*driver.TimeoutError)) && !isClosing &&
			!s.comm.HasFailed()
		if err != nil && !hasTimedOut {
			_ = s.comm.Fail(err)
			return
		}
	}
}

func (pipe *sendPipe) backlogSentChannel() <-chan struct{} {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	return pipe.backlogSent
}

// unreadMessages returns the messages that were still in the pipe when the peer left the group.
func (pipe *sendPipe) unreadMessages(c *communicator, peer int) []driver.MessageEnds {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.lastFrame == 0 || !c.HasLeft(peer) {
		return nil
	}
	read := spin.LoadAcquire64(&c.pipe(c.cfg.Rank, peer).read)
	var unread []driver.MessageEnds
	for n := pipe.lastFrame; n > read && n+pipeFrames > pipe.lastFrame; n-- {
		message := pipe.frameMessages[n%pipeFrames]
		ends := driver.MessageEnds{
			From: c.cfg.Ranks[c.cfg.Rank], To: c.cfg.Ranks[peer],
			Tag: message.tag, Number: message.number, Sent: 1,
		}
		if len(unread) == 0 || unread[len(unread)-1] != ends {
			unread = append(unread, ends)
		}
	}
	return unread
}
