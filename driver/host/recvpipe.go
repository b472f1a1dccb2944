package host

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/ranked"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// recvPipe reads frames from a peer. A goroutine that waits for a message reads all frames that
// have arrived, even those of other messages.
type recvPipe struct {
	comm   *communicator
	source int // group rank

	lastFrame atomic.Uint64

	mu            ranked.Mutex[recvPipeMu]
	incoming      map[messageKey]*incomingMessage // guarded by mu
	messagesBegun uint64                          // guarded by mu
}

type messageKey struct {
	tag    int
	number uint64
}

// incomingMessage is a message whose first frame has arrived or whose Recv is running, but which is
// incomplete.
type incomingMessage struct {
	hasBegun      bool        // the first frame has arrived
	header        frameHeader // of the first frame
	receivedBytes int64
	earlyData     []byte    // data that arrived before the Recv ran
	receiver      *recvCall // the running Recv, or nil
}

type recvCall struct {
	messageCall
	claimed  atomic.Bool // source and number are set
	source   int
	number   uint64
	attached bool        // frames are copied directly to the Recv's buffer; used by the Recv's thread
	complete atomic.Bool // the whole message has been received or err is set
	err      error
}

// canBeLate reports whether the Recv may run late without blocking the sender, because the message
// fits into the pipe.
func (r *recvCall) canBeLate() bool {
	return r.claimed.Load() && r.plan.bytes <= pipeFrames*frameBytes
}

func (r *recvCall) transferNow(callerWaits bool) (done bool, err error) {
	if r.canBeLate() && !callerWaits {
		return r.receive(1, nil)
	}

	return r.receive(2, r.comm.PollBriefly)
}

// receiveForWaiter receives on the thread of a caller that waits for the message. It gives up if a
// frame does not arrive soon or ctx ends.
func (r *recvCall) receiveForWaiter(ctx context.Context) (done bool, err error) {
	return r.receive(math.MaxInt, func(word *uint64, want uint64) bool {
		return r.comm.PollLonger(ctx, word, want)
	})
}

// receive reads frames in rounds, and polls for the next frame between them.
func (r *recvCall) receive(
	rounds int, poll func(word *uint64, want uint64) bool,
) (done bool, err error) {
	if err := r.comm.BeginUse(); err != nil {
		return false, err
	}

	defer r.comm.EndUse()
	if r.comm.HasFailed() {
		r.detach()
		return false, r.comm.Cause()
	}

	for round := 1; ; round++ {
		if done, err := r.readArrived(); done || err != nil {
			return done, r.failIfErr(err)
		}

		if !r.claimed.Load() || round == rounds {
			return false, nil
		}

		pipe := &r.comm.messages.recvPipes[r.source]
		next := pipe.lastFrame.Load() + 1
		if !poll(&pipe.frameAt(next).posted, next) {
			return false, nil
		}
	}
}

func (r *recvCall) run() error {
	if err := r.comm.BeginUse(); err != nil {
		return err
	}

	defer r.comm.EndUse()
	for {
		done, err := r.readArrived()
		if err == nil && !done {
			if err = r.comm.AwaitMessage(r.nextFrameWait()); err == nil {
				continue
			}

			r.detach()
			if r.complete.Load() {
				done, err = r.end()
			}
		}

		if done || err != nil {
			return r.failIfErr(err)
		}
	}
}

// readArrived reads the frames that have arrived, but stops when the message is complete.
func (r *recvCall) readArrived() (done bool, err error) {
	if !r.claimed.Load() {
		for i := range r.comm.messages.recvPipes {
			if err := r.comm.messages.recvPipes[i].readFrames(r); err != nil {
				return false, err
			}
		}

		if !r.claimed.Load() {
			return false, nil
		}
	}

	if !r.attached {
		r.attach()
	}

	if !r.complete.Load() {
		if err := r.comm.messages.recvPipes[r.source].readFrames(r); err != nil {
			r.detach()
			return false, err
		}
	}

	if !r.complete.Load() {
		return false, nil
	}

	return r.end()
}

func (r *recvCall) end() (done bool, err error) {
	r.comm.Counts.Mu.Lock()
	delete(r.comm.messages.unfinishedRecvs, r)
	r.comm.Counts.Mu.Unlock()
	if r.err == nil && r.plan.Arrived != nil {
		return true, driver.Guard("Call.Arrived", func() { r.plan.Arrived(r.source) })
	}

	return true, r.err
}

func (r *recvCall) attach() {
	pipe := &r.comm.messages.recvPipes[r.source]
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	r.attached = true
	key := messageKey{r.plan.Tag, r.number}
	msg := pipe.findIncoming(key)
	msg.receiver = r
	if !msg.hasBegun {
		return
	}

	if r.fits(msg) {
		reduce.Copy(pointer(r.plan.Recv), unsafe.Pointer(unsafe.SliceData(msg.earlyData)),
			len(msg.earlyData), reduce.Hint{})
	}

	msg.earlyData = nil
	pipe.finish(key, msg)
}

// detach prevents other goroutines from writing to the Recv's buffer.
func (r *recvCall) detach() {
	if !r.attached {
		return
	}

	pipe := &r.comm.messages.recvPipes[r.source]
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	delete(pipe.incoming, messageKey{r.plan.Tag, r.number})
}

// If a message does not match the Recv, fits sets r.err.
func (r *recvCall) fits(msg *incomingMessage) bool {
	h := &msg.header
	sent := control.MessageEnd{
		Digest: h.digest, After: h.priorCollectives, Bytes: h.total,
		Type: driver.DataType(h.dataType),
	}
	received := control.MessageEnd{
		Digest: r.plan.Digest, After: r.priorCollectives, Bytes: uint64(r.plan.bytes),
		Type: r.plan.DataType,
	}
	r.err = control.CompareEnds(&r.comm.cfg, sent, received, &r.plan.Call, r.source, r.number,
		r.checkCalls)
	return r.err == nil
}

func (r *recvCall) nextFrameWait() shm.MessageWait {
	c := r.comm
	var w shm.MessageWait
	if r.claimed.Load() {
		pipe := &c.messages.recvPipes[r.source]
		w = r.messageWait(func() bool { return r.complete.Load() || pipe.arrived() }, r.source)
	} else {
		w = r.anyFrameWait()
	}

	w.FindFault = r.cannotArrive
	return w
}

// anyFrameWait describes the wait of a Recv without a matching message for the other ranks.
func (r *recvCall) anyFrameWait() shm.MessageWait {
	c := r.comm
	present := c.PresentRanks()
	sources := present
	if len(sources) == 0 {
		sources = c.OtherRanks()
	}

	return r.messageWait(func() bool {
		if r.claimed.Load() || len(c.PresentRanks()) != len(present) {
			return true
		}

		for i := range c.messages.recvPipes {
			if c.messages.recvPipes[i].arrived() {
				return true
			}
		}

		return false
	}, sources...)
}

func (pipe *recvPipe) shared() *sharedPipe {
	return pipe.comm.pipe(pipe.source, pipe.comm.cfg.Rank)
}

func (pipe *recvPipe) frameAt(n uint64) *frame { return &pipe.shared().frames[n%pipeFrames] }

func (pipe *recvPipe) arrived() bool {
	if pipe.source == pipe.comm.cfg.Rank {
		return false
	}

	next := pipe.lastFrame.Load() + 1
	return spin.LoadAcquire64(&pipe.frameAt(next).posted) == next
}

func (pipe *recvPipe) readAll() error { return pipe.readFrames(nil) }

// readFrames reads the frames that have arrived. If wanted is not nil, it stops at the end of the
// wanted Recv's message.
func (pipe *recvPipe) readFrames(wanted *recvCall) error {
	if !pipe.arrived() {
		return nil
	}

	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	shared := pipe.shared()
	for pipe.arrived() && (wanted == nil || !wanted.complete.Load()) {
		next := pipe.lastFrame.Load() + 1
		if err := pipe.readFrame(&shared.frames[next%pipeFrames]); err != nil {
			return err
		}

		pipe.lastFrame.Store(next)
		spin.StoreRelease64(&shared.read, next)
		pipe.comm.Wake(pipe.source)
	}

	return nil
}

// readFrame reads each word of the header only once and checks it before use, because the peer
// might change it. The caller must hold pipe.mu.
func (pipe *recvPipe) readFrame(f *frame) error {
	h := frameHeader{
		tag: spin.LoadAcquire64(&f.header.tag), number: spin.LoadAcquire64(&f.header.number),
		total: spin.LoadAcquire64(&f.header.total), offset: spin.LoadAcquire64(&f.header.offset),
		digest:           spin.LoadAcquire64(&f.header.digest),
		priorCollectives: spin.LoadAcquire64(&f.header.priorCollectives),
		dataType:         spin.LoadAcquire64(&f.header.dataType),
	}
	if h.tag > driver.MaxTag || h.number == 0 || h.total > 1<<62 || h.offset > h.total {
		return pipe.invalidFrameError(&h)
	}

	key := messageKey{int(h.tag), h.number}
	msg := pipe.findIncoming(key)
	if h.offset != uint64(msg.receivedBytes) ||
		msg.hasBegun && (h.total != msg.header.total || h.offset == h.total) {
		return pipe.invalidFrameError(&h)
	}

	if !msg.hasBegun {
		msg.hasBegun, msg.header = true, h
		pipe.messagesBegun++
		pipe.matchArrival(key, msg)
	}

	bytes := min(int64(h.total)-msg.receivedBytes, frameBytes)
	data := unsafe.Pointer(&f.data)
	switch {
	case msg.receiver == nil:
		msg.earlyData = append(msg.earlyData, unsafe.Slice((*byte)(data), bytes)...)
	case msg.receiver.err == nil:
		dst := unsafe.Add(pointer(msg.receiver.plan.Recv), msg.receivedBytes)
		reduce.Copy(dst, data, int(bytes), reduce.Hint{})
	}

	msg.receivedBytes += bytes
	pipe.finish(key, msg)
	return nil
}

func (pipe *recvPipe) matchArrival(key messageKey, msg *incomingMessage) {
	if msg.receiver != nil {
		msg.receiver.fits(msg)
		return
	}

	c := pipe.comm
	c.Counts.Mu.Lock()
	claims := c.messages.matcher.Arrive(message.Arrival{
		Source: pipe.source, Tag: key.tag, Number: key.number,
		Segment: control.MessageSegment(&c.cfg, msg.header.priorCollectives),
	})
	assignMessages(claims)
	c.Counts.Mu.Unlock()
	if len(claims) > 0 {
		c.Wake(c.cfg.Rank)
	}
}

func (pipe *recvPipe) findIncoming(key messageKey) *incomingMessage {
	msg := pipe.incoming[key]
	if msg == nil {
		if pipe.incoming == nil {
			pipe.incoming = map[messageKey]*incomingMessage{}
		}

		msg = &incomingMessage{}
		pipe.incoming[key] = msg
	}

	return msg
}

// finish completes the Recv of a message that has arrived or does not match. The caller must hold
// pipe.mu.
func (pipe *recvPipe) finish(key messageKey, msg *incomingMessage) {
	r := msg.receiver
	if r == nil || r.err == nil && msg.receivedBytes < int64(msg.header.total) {
		return
	}

	if msg.receivedBytes == int64(msg.header.total) {
		delete(pipe.incoming, key)
	}

	r.complete.Store(true)
	r.comm.Wake(r.comm.cfg.Rank)
}

func (pipe *recvPipe) invalidFrameError(h *frameHeader) error {
	cfg := &pipe.comm.cfg
	return fmt.Errorf("rank %d of the world sent an invalid frame in group %s: offset %d in message "+
		"%d with tag %d and %d bytes", cfg.Ranks[pipe.source], cfg.Name(), h.offset, h.number, h.tag,
		h.total)
}

// cannotArrive returns an error if the group is strict and no rank can send the message any more.
// Otherwise, the Recv would keep this rank from the collective that compares message counts.
func (r *recvCall) cannotArrive() error {
	c := r.comm
	if !c.cfg.Strict {
		return nil
	}

	sources := c.OtherRanks()
	if r.plan.Root != driver.AnySource {
		sources = []int{r.plan.Root}
	}

	if !slices.ContainsFunc(sources, r.mayArrive) {
		return c.UnbalancedError(r.priorCollectives + 1)
	}

	return nil
}

// mayArrive reports whether a message from the source may still match. After the next collective,
// only messages that the source sent before it can match. The source publishes its count of
// messages before it calls the collective, so mayArrive must read the ticket first.
func (r *recvCall) mayArrive(source int) bool {
	c := r.comm
	if c.LastTicketOf(source) <= r.priorCollectives {
		return true
	}

	pipe, shared := &c.messages.recvPipes[source], c.pipe(source, c.cfg.Rank)
	sent := spin.LoadAcquire64(&shared.sendCount)
	pipe.mu.Lock()
	defer pipe.mu.Unlock()
	if pipe.messagesBegun != sent || r.complete.Load() {
		return true
	}

	if !r.claimed.Load() {
		return false
	}

	msg := pipe.incoming[messageKey{r.plan.Tag, r.number}]
	return r.source != source || msg != nil && msg.hasBegun
}
