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

// sendPipe writes messages to a peer in frames of a fixed size, through a pipe in shared memory
// (sharedPipe). Frames of Sends on different streams may be interleaved.
//
// If the pipe stays full, because the receiver does not call Recv, a Send copies the rest of its
// message and lets its stream continue. The pipe's backlog consists of such Sends, which a
// goroutine finishes.
type sendPipe struct {
	mu            ranked.Mutex[sendPipeMu] // guards the other fields
	lastFrame     uint64                   // number of the last frame that has been written, from 1
	frameMessages [pipeFrames]frameMessage // messages of the latest frames, at number % pipeFrames
	fullSince     uint64                   // time at which a Send found the pipe full, or 0
	lastReadFrame uint64                   // last frame that the receiver had read at this time
	backlog       []*sendCall              // Sends that sendBacklog must finish
	backlogBytes  int64                    // size of the rests of these messages
	backlogSent   chan struct{}            // closed when the backlog is empty; nil without a backlog
}

// frameMessage identifies the message of a frame.
type frameMessage struct {
	tag    int
	number uint64
}

type sendCall struct {
	messageCall
	pipe        *sendPipe
	number      uint64         // number of the message among those with this peer and tag
	data        unsafe.Pointer // address of the byte at offset dataOffset of the message
	dataOffset  int64          // 0 until deferRest has copied the rest
	copiedData  []byte         // memory of the copied rest, or nil
	postedBytes int64          // size of the part that has been written to frames
	hasBegun    bool           // the first frame has been posted
}

// isPosted reports whether the whole message has been posted. An empty message has one frame.
func (s *sendCall) isPosted() bool { return s.hasBegun && s.postedBytes == s.plan.bytes }

// shared returns the pipe in shared memory. The caller must have called BeginUse.
func (s *sendCall) shared() *sharedPipe {
	return s.comm.pipe(s.comm.cfg.Rank, s.plan.Root)
}

// transferNow implements messageWork. It posts the frames for which the pipe has room.
func (s *sendCall) transferNow(bool) (done bool, err error) {
	if err := s.comm.BeginUse(); err != nil {
		return false, err
	}

	defer s.comm.EndUse()
	return s.postFrames(s.shared()), nil
}

// postFrames posts frames until the message ends or the pipe is full. In the first case, it returns
// true.
func (s *sendCall) postFrames(shared *sharedPipe) bool {
	for !s.isPosted() {
		if !s.postFrame(shared) {
			return false
		}
	}

	return true
}

// postFrame posts the next frame of the message. It returns false if the pipe is full.
func (s *sendCall) postFrame(shared *sharedPipe) bool {
	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if !pipe.hasRoom(shared) {
		return false
	}

	pipe.lastFrame++
	f := &shared.frames[pipe.lastFrame%pipeFrames]
	bytes := min(s.plan.bytes-s.postedBytes, frameBytes)
	src := unsafe.Add(s.data, s.postedBytes-s.dataOffset)
	reduce.Copy(unsafe.Pointer(&f.data), src, int(bytes), reduce.Hint{})
	f.header = frameHeader{
		tag: uint64(s.plan.Tag), number: s.number, total: uint64(s.plan.bytes),
		offset: uint64(s.postedBytes), digest: s.plan.Digest, priorCollectives: s.priorCollectives,
		dataType: uint64(s.plan.DataType),
	}
	pipe.frameMessages[pipe.lastFrame%pipeFrames] = frameMessage{
		tag: s.plan.Tag, number: s.number,
	}
	spin.StoreRelease64(&f.posted, pipe.lastFrame) // publishes the frame
	s.comm.Wake(s.plan.Root)
	s.postedBytes += bytes
	s.hasBegun = true
	return true
}

// hasRoom reports whether the pipe has room for a frame. The caller must hold pipe.mu.
func (pipe *sendPipe) hasRoom(shared *sharedPipe) bool {
	return pipe.lastFrame-spin.LoadAcquire64(&shared.read) < pipeFrames
}

// hasRoom is like sendPipe.hasRoom, but locks the pipe.
func (s *sendCall) hasRoom(shared *sharedPipe) bool {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return s.pipe.hasRoom(shared)
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
		const hasNotWaited = 0
		if !s.shouldDefer(shared, hasNotWaited) {
			wantRead := s.lastFrame() + 1 - pipeFrames // then the pipe has room
			if s.comm.PollBriefly(&shared.read, wantRead) {
				continue
			}
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

// shouldDefer reports whether sendBacklog should send the rest of the message. waitBegin is the
// start of the Send's wait, or 0 if it has not waited.
func (s *sendCall) shouldDefer(shared *sharedPipe, waitBegin uint64) bool {
	now, timeout := sys.Monotonic(), s.comm.cfg.Timeout.Get()
	if waitBegin != 0 && now-waitBegin > uint64(timeout/4) {
		return true
	}

	read := spin.LoadAcquire64(&shared.read)
	restBytes := s.plan.bytes - s.postedBytes
	return now >= s.pipe.waitDeadline(read, now, restBytes, timeout)
}

func (s *sendCall) lastFrame() uint64 {
	s.pipe.mu.Lock()
	defer s.pipe.mu.Unlock()
	return s.pipe.lastFrame
}

// waitForRoom waits until the pipe has room or shouldDefer returns true.
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

// waitDeadline returns the time at which a Send stops waiting. The wait begins when a Send finds
// the pipe full, and anew when the receiver has read a frame since. A Send waits for only a
// fraction of the timeout, because other ranks may be waiting for this rank's stream.
//
// read is the last frame that the receiver has read, and restBytes the size of the message's rest.
func (pipe *sendPipe) waitDeadline(
	read, now uint64, restBytes int64, timeout time.Duration,
) uint64 {
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if read != pipe.lastReadFrame || pipe.fullSince == 0 {
		pipe.lastReadFrame = read
		pipe.fullSince = now
	}

	wait := min(max(minSendWait, time.Duration(restBytes)*copyTimePerByte), longestSendWait)
	doublings := min(pipe.backlogBytes/backlogUnit, 20) // 20, so that wait does not overflow
	wait <<= doublings
	return pipe.fullSince + uint64(min(wait, longestSendWait, timeout/16))
}

// deferRest copies the rest of the message, which sendBacklog then sends. The caller must have
// called BeginUse.
func (s *sendCall) deferRest() error {
	restBytes := s.plan.bytes - s.postedBytes
	s.copiedData = make([]byte, max(1, restBytes)) // not empty, so that it has an address
	dst := unsafe.Pointer(&s.copiedData[0])
	src := unsafe.Add(s.data, s.postedBytes) // dataOffset is still 0
	reduce.Copy(dst, src, int(restBytes), reduce.Hint{})
	s.data = dst
	s.dataOffset = s.postedBytes
	if err := s.comm.BeginUse(); err != nil { // for sendBacklog
		return err
	}

	pipe := s.pipe
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	pipe.backlog = append(pipe.backlog, s)
	pipe.backlogBytes += restBytes
	if pipe.backlogSent != nil { // sendBacklog is running, and has called BeginUse
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

// sendBacklog finishes the Sends in the backlog, in their order.
func (pipe *sendPipe) sendBacklog() {
	for {
		pipe.mu.Lock()
		if len(pipe.backlog) == 0 {
			close(pipe.backlogSent)
			pipe.backlogSent = nil
			pipe.backlog = nil
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

// sendRest posts the rest of a message, and waits while the pipe is full. No stream waits for the
// message, so it ignores timeouts, unless the group is closing. Other errors make the group fail.
func (s *sendCall) sendRest() {
	shared := s.shared()
	for !s.postFrames(shared) {
		isClosing := s.comm.messages.isClosing.Load()
		err := s.waitForRoom(shared, func() bool { return false })
		if err == nil {
			continue
		}

		hasTimedOut := errors.As(err, new(*driver.TimeoutError))
		canWaitLonger := hasTimedOut && !isClosing && !s.comm.HasFailed()
		if !canWaitLonger {
			_ = s.comm.Fail(err)
			return
		}
	}
}

// backlogSentChannel returns a channel that is closed when the backlog has been sent, or nil if
// there is no backlog.
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
	// At most the latest pipeFrames frames are unread.
	for n := pipe.lastFrame; n > read && n+pipeFrames > pipe.lastFrame; n-- {
		message := pipe.frameMessages[n%pipeFrames]
		ends := driver.MessageEnds{
			From: c.cfg.Ranks[c.cfg.Rank], To: c.cfg.Ranks[peer],
			Tag: message.tag, Number: message.number, Sent: 1,
		}
		isSameMessage := len(unread) > 0 && unread[len(unread)-1] == ends // as in frame n+1
		if !isSameMessage {
			unread = append(unread, ends)
		}
	}

	return unread
}
