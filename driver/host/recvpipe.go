package host

import (
	"fmt"
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

// recvPipe reads the pipe from a peer. A goroutine that waits for a message reads all frames
// that have arrived, including those of messages that other goroutines are waiting for.
type recvPipe struct {
	c      *communicator
	source int // group rank of the peer

	frame atomic.Uint64 // number of the last frame read

	mu       ranked.Mutex[recvPipeMu]
	incoming map[messageKey]*inbound // messages that have begun or are awaited; guarded by mu
	begun    uint64                  // how many messages have begun to arrive; guarded by mu
}

type messageKey struct {
	tag    int
	number uint64
}

// inbound is an incomplete message: its first frame has arrived, its Recv is running, or both.
type inbound struct {
	begun    bool        // whether the first frame has arrived
	header   frameHeader // of the first frame
	received int64       // in bytes
	heap     []byte      // data that arrived before the Recv ran
	receiver *receive    // the running Recv, or nil
}

type receive struct {
	messageCall
	claimed atomic.Bool // whether a message has been assigned, so that source and number are set
	source  int
	number  uint64
	// attached is set if frames are copied directly to the Recv's buffer. Only the thread that runs
	// the Recv uses this field.
	attached bool
	complete atomic.Bool // whether the whole message has been received or err is set
	err      error
}

// tryNow receives the frames that have arrived.
func (r *receive) tryNow() (done bool, err error) {
	if err := r.c.BeginUse(); err != nil {
		return false, err
	}
	defer r.c.EndUse()
	if r.c.HasFailed() {
		return false, r.c.Cause()
	}
	for range 2 {
		if done, err := r.readArrived(); done || err != nil {
			return done, r.failIfErr(err)
		}
		if !r.claimed.Load() {
			break
		}
		in := &r.c.messages.recvPipes[r.source]
		next := in.frame.Load() + 1
		if !r.c.PollBriefly(&in.frameAt(next).posted, next) {
			break
		}
	}
	return false, nil
}

func (r *receive) run() error {
	if err := r.c.BeginUse(); err != nil {
		return err
	}
	defer r.c.EndUse()
	for {
		done, err := r.readArrived()
		if err == nil && !done {
			if err = r.c.AwaitMessage(r.nextFrame()); err == nil {
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
func (r *receive) readArrived() (done bool, err error) {
	if !r.claimed.Load() {
		for i := range r.c.messages.recvPipes {
			if err := r.c.messages.recvPipes[i].drain(r); err != nil {
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
		if err := r.c.messages.recvPipes[r.source].drain(r); err != nil {
			return false, err
		}
	}
	if !r.complete.Load() {
		return false, nil
	}
	return r.end()
}

func (r *receive) end() (done bool, err error) {
	r.c.Counts.Mu.Lock()
	delete(r.c.messages.unfinished, r)
	r.c.Counts.Mu.Unlock()
	if r.err == nil && r.plan.Arrived != nil {
		return true, driver.Guard("Call.Arrived", func() { r.plan.Arrived(r.source) })
	}
	return true, r.err
}

// attach makes the Recv's buffer the destination of the message and copies the data that has
// already arrived into it.
func (r *receive) attach() {
	in := &r.c.messages.recvPipes[r.source]
	in.mu.Lock()
	defer in.mu.Unlock()
	r.attached = true
	key := messageKey{r.plan.Tag, r.number}
	p := in.findIncoming(key)
	p.receiver = r
	if !p.begun {
		return
	}
	if r.fits(p) {
		reduce.Copy(pointer(r.plan.Recv), unsafe.Pointer(unsafe.SliceData(p.heap)), len(p.heap),
			reduce.Hint{})
	}
	p.heap = nil
	in.finish(key, p)
}

// detach prevents other goroutines from writing to the Recv's buffer.
func (r *receive) detach() {
	if !r.attached {
		return
	}
	in := &r.c.messages.recvPipes[r.source]
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.incoming, messageKey{r.plan.Tag, r.number})
}

// fits reports whether the Recv matches a message that has begun to arrive. If it does not
// match, fits sets r.err.
func (r *receive) fits(p *inbound) bool {
	h := &p.header
	sent := control.MessageEnd{
		Digest: h.digest, After: h.after, Bytes: h.total, Type: driver.DataType(h.dataType),
	}
	received := control.MessageEnd{
		Digest: r.plan.Digest, After: r.after, Bytes: uint64(r.plan.bytes), Type: r.plan.DataType,
	}
	r.err = control.CompareEnds(&r.c.cfg, sent, received, &r.plan.Call, r.source, r.number, r.check)
	return r.err == nil
}

// nextFrame describes the wait for the next frame. A Recv with AnySource does not wait for ranks
// that have left the group.
func (r *receive) nextFrame() shm.MessageWait {
	c := r.c
	var w shm.MessageWait
	if r.claimed.Load() {
		in := &c.messages.recvPipes[r.source]
		w = r.messageWait(func() bool { return r.complete.Load() || in.arrived() }, r.source)
	} else {
		w = r.anyFrame()
	}
	w.Why = r.cannotArrive
	return w
}

// anyFrame describes the wait of a Recv that has no matching message yet.
func (r *receive) anyFrame() shm.MessageWait {
	c := r.c
	present := c.OthersPresent()
	sources := present
	if len(sources) == 0 {
		sources = c.Others()
	}
	return r.messageWait(func() bool {
		if r.claimed.Load() || len(c.OthersPresent()) != len(present) {
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

func (in *recvPipe) box() *pair { return in.c.pipe(in.source, in.c.cfg.Rank) }

func (in *recvPipe) frameAt(n uint64) *frame { return &in.box().frames[n%pairFrames] }

func (in *recvPipe) arrived() bool {
	if in.source == in.c.cfg.Rank {
		return false
	}
	next := in.frame.Load() + 1
	return spin.LoadAcquire64(&in.frameAt(next).posted) == next
}

// drain reads the frames that have arrived. If wanted is set, drain stops when that Recv is
// complete.
func (in *recvPipe) drain(wanted *receive) error {
	if !in.arrived() {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	box := in.box()
	for in.arrived() && (wanted == nil || !wanted.complete.Load()) {
		next := in.frame.Load() + 1
		if err := in.readFrame(&box.frames[next%pairFrames]); err != nil {
			return err
		}
		in.frame.Store(next)
		spin.StoreRelease64(&box.read, next)
		in.c.Wake(in.source)
	}
	return nil
}

// readFrame copies the data of one frame to the buffer of its Recv or to the heap. It reads each
// word of the header only once and checks it before use, because the peer might change it. The
// caller must hold in.mu.
func (in *recvPipe) readFrame(f *frame) error {
	h := frameHeader{
		tag: spin.LoadAcquire64(&f.header.tag), number: spin.LoadAcquire64(&f.header.number),
		total: spin.LoadAcquire64(&f.header.total), offset: spin.LoadAcquire64(&f.header.offset),
		digest: spin.LoadAcquire64(&f.header.digest), after: spin.LoadAcquire64(&f.header.after),
		dataType: spin.LoadAcquire64(&f.header.dataType),
	}
	if h.tag > driver.MaxTag || h.number == 0 || h.total > 1<<62 || h.offset > h.total {
		return in.errInvalidFrame(&h)
	}
	key := messageKey{int(h.tag), h.number}
	p := in.findIncoming(key)
	if h.offset != uint64(p.received) ||
		p.begun && (h.total != p.header.total || h.offset == h.total) {
		return in.errInvalidFrame(&h)
	}
	if !p.begun {
		p.begun, p.header = true, h
		in.begun++
		in.matchArrival(key, p)
	}
	bytes := min(int64(h.total)-p.received, frameBytes)
	data := unsafe.Pointer(&f.data)
	switch {
	case p.receiver == nil:
		p.heap = append(p.heap, unsafe.Slice((*byte)(data), bytes)...)
	case p.receiver.err == nil:
		dst := unsafe.Add(pointer(p.receiver.plan.Recv), p.received)
		reduce.Copy(dst, data, int(bytes), reduce.Hint{})
	}
	p.received += bytes
	in.finish(key, p)
	return nil
}

// matchArrival compares a message that has begun to arrive with its Recv. If there is no Recv
// yet, it adds the message to the matcher.
func (in *recvPipe) matchArrival(key messageKey, p *inbound) {
	if p.receiver != nil {
		p.receiver.fits(p)
		return
	}
	c := in.c
	c.Counts.Mu.Lock()
	claims := c.messages.matcher.Arrive(message.Arrival{
		Source: in.source, Tag: key.tag, Number: key.number,
		Segment: control.MessageSegment(&c.cfg, p.header.after),
	})
	assign(claims)
	c.Counts.Mu.Unlock()
	if len(claims) > 0 {
		c.Wake(c.cfg.Rank)
	}
}

func (in *recvPipe) findIncoming(key messageKey) *inbound {
	p := in.incoming[key]
	if p == nil {
		if in.incoming == nil {
			in.incoming = map[messageKey]*inbound{}
		}
		p = &inbound{}
		in.incoming[key] = p
	}
	return p
}

// finish completes the Recv of a message if the whole message has arrived or if it does not
// match the Recv. The caller must hold in.mu.
func (in *recvPipe) finish(key messageKey, p *inbound) {
	r := p.receiver
	if r == nil || r.err == nil && p.received < int64(p.header.total) {
		return
	}
	if p.received == int64(p.header.total) {
		delete(in.incoming, key)
	}
	r.complete.Store(true)
	r.c.Wake(r.c.cfg.Rank)
}

func (in *recvPipe) errInvalidFrame(h *frameHeader) error {
	return fmt.Errorf("rank %d of the world sent an invalid frame in group %s: offset %d in message "+
		"%d with tag %d and %d bytes", in.c.cfg.Ranks[in.source], in.c.cfg.Name(), h.offset, h.number,
		h.tag, h.total)
}

// cannotArrive returns an error if the group is strict and no rank can send the Recv's message any
// more. Without this check, the Recv would prevent this rank from reaching the collective that
// compares the message counts of all ranks.
func (r *receive) cannotArrive() error {
	c := r.c
	if !c.cfg.Strict {
		return nil
	}
	sources := c.Others()
	if r.plan.Root != driver.AnySource {
		sources = []int{r.plan.Root}
	}
	if !slices.ContainsFunc(sources, r.mayArrive) {
		return c.Unbalanced(r.after + 1)
	}
	return nil
}

// mayArrive reports whether a message from the source may still match the Recv. This is possible if
// the source has not yet called the collective that follows the Recv, or if the first frame of a
// message that it sent before that collective has not arrived. The source publishes its count of
// messages before it calls the collective, so mayArrive must read the ticket before the count.
func (r *receive) mayArrive(source int) bool {
	c := r.c
	if c.TicketsOf(source) <= r.after {
		return true
	}
	in, box := &c.messages.recvPipes[source], c.pipe(source, c.cfg.Rank)
	sent := spin.LoadAcquire64(&box.posted)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.begun != sent || r.complete.Load() {
		return true
	}
	if !r.claimed.Load() {
		return false
	}
	p := in.incoming[messageKey{r.plan.Tag, r.number}]
	return r.source != source || p != nil && p.begun
}
