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

// recvPipe reads the pipe from a peer. A goroutine that waits for a message reads all frames that
// have arrived, including those of messages for which other goroutines wait.
type recvPipe struct {
	c      *communicator
	source int // the peer, a group rank

	frame atomic.Uint64 // the number of the last frame read

	mu       ranked.Mutex[recvPipeMu]
	incoming map[messageKey]*inbound // messages that have begun or are awaited; guarded by mu
	begun    uint64                  // counts messages whose first frame has arrived; guarded by mu
}

// messageKey identifies a message of a peer.
type messageKey struct {
	tag    int
	number uint64
}

// inbound is an incomplete message: its first frame has arrived, its Recv is running, or both.
type inbound struct {
	begun  bool        // whether the first frame has arrived
	header frameHeader // of the first frame
	got    int64       // bytes received
	heap   []byte      // data that arrived before the Recv ran
	to     *receive    // the running Recv, or nil
}

// receive runs a Recv.
type receive struct {
	messageCall
	// claimed is set after source and number have been set.
	claimed atomic.Bool
	source  int
	number  uint64
	// attached reports whether frames are copied directly to the Recv's buffer. Only the Recv's
	// thread uses it.
	attached bool
	// ended is set when the message is complete, or after err has been set.
	ended atomic.Bool
	err   error
}

// tryNow implements transfer by receiving the frames that have arrived.
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
		if !r.c.PollSoon(&in.at(next).posted, next) {
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
			if r.ended.Load() {
				done, err = r.end()
			}
		}
		if done || err != nil {
			return r.failIfErr(err)
		}
	}
}

// readArrived reads frames that have arrived, until the message is complete.
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
	if !r.ended.Load() {
		if err := r.c.messages.recvPipes[r.source].drain(r); err != nil {
			return false, err
		}
	}
	if !r.ended.Load() {
		return false, nil
	}
	return r.end()
}

func (r *receive) end() (done bool, err error) {
	r.c.Counts.Mu.Lock()
	delete(r.c.messages.open, r)
	r.c.Counts.Mu.Unlock()
	if r.err == nil && r.plan.Arrived != nil {
		return true, driver.Guard("Call.Arrived", func() { r.plan.Arrived(r.source) })
	}
	return true, r.err
}

// attach makes the Recv's buffer the destination of the message, and copies the data that has
// already arrived to the buffer.
func (r *receive) attach() {
	in := &r.c.messages.recvPipes[r.source]
	in.mu.Lock()
	defer in.mu.Unlock()
	r.attached = true
	at := messageKey{r.plan.Tag, r.number}
	p := in.findIncoming(at)
	p.to = r
	if !p.begun {
		return
	}
	if r.fits(p) {
		reduce.Copy(pointer(r.plan.Recv), unsafe.Pointer(unsafe.SliceData(p.heap)), len(p.heap),
			reduce.Hint{})
	}
	p.heap = nil
	in.finish(at, p)
}

// detach ensures that no goroutine writes to the Recv's buffer afterwards.
func (r *receive) detach() {
	if !r.attached {
		return
	}
	in := &r.c.messages.recvPipes[r.source]
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.incoming, messageKey{r.plan.Tag, r.number})
}

// fits reports whether the Recv matches the message, whose first frame has arrived. If not, it sets
// r.err.
func (r *receive) fits(p *inbound) bool {
	h := &p.header
	sent := control.End{
		Digest: h.digest, After: h.after, Bytes: h.total, Type: driver.DataType(h.dataType),
	}
	received := control.End{
		Digest: r.plan.Digest, After: r.after, Bytes: uint64(r.plan.bytes), Type: r.plan.DataType,
	}
	r.err = control.Differ(&r.c.cfg, sent, received, &r.plan.Call, r.source, r.number, r.check)
	return r.err == nil
}

// nextFrame describes the wait for the next frame. A Recv from any source does not wait for ranks
// that have left the group.
func (r *receive) nextFrame() shm.MessageWait {
	c := r.c
	var w shm.MessageWait
	if r.claimed.Load() {
		in := &c.messages.recvPipes[r.source]
		w = r.messageWait(func() bool { return r.ended.Load() || in.arrived() }, r.source)
	} else {
		w = r.anyFrame()
	}
	w.Why = r.cannotArrive
	return w
}

// anyFrame describes the wait of a Recv that has no matching message yet.
func (r *receive) anyFrame() shm.MessageWait {
	c := r.c
	present := c.Present()
	from := present
	if len(from) == 0 {
		from = c.Others()
	}
	return r.messageWait(func() bool {
		if r.claimed.Load() || len(c.Present()) != len(present) {
			return true
		}
		for i := range c.messages.recvPipes {
			if c.messages.recvPipes[i].arrived() {
				return true
			}
		}
		return false
	}, from...)
}

func (in *recvPipe) box() *pair { return in.c.pipe(in.source, in.c.cfg.Rank) }

func (in *recvPipe) at(frame uint64) *frame { return &in.box().frames[frame%pairFrames] }

func (in *recvPipe) arrived() bool {
	if in.source == in.c.cfg.Rank {
		return false
	}
	next := in.frame.Load() + 1
	return spin.LoadAcquire64(&in.at(next).posted) == next
}

// drain reads the frames that have arrived, until the given Recv has its message.
func (in *recvPipe) drain(until *receive) error {
	if !in.arrived() {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	box := in.box()
	for in.arrived() && (until == nil || !until.ended.Load()) {
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

// readFrame copies one frame's data to its Recv or to the heap. It reads each of the peer's words
// once and checks it before use. The caller holds in.mu.
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
	at := messageKey{int(h.tag), h.number}
	p := in.findIncoming(at)
	if h.offset != uint64(p.got) ||
		p.begun && (h.total != p.header.total || h.offset == h.total) {
		return in.errInvalidFrame(&h)
	}
	if !p.begun {
		p.begun, p.header = true, h
		in.begun++
		in.matchArrival(at, p)
	}
	bytes := min(int64(h.total)-p.got, frameBytes)
	data := unsafe.Pointer(&f.data)
	switch {
	case p.to == nil:
		p.heap = append(p.heap, unsafe.Slice((*byte)(data), bytes)...)
	case p.to.err == nil:
		reduce.Copy(unsafe.Add(pointer(p.to.plan.Recv), p.got), data, int(bytes), reduce.Hint{})
	}
	p.got += bytes
	in.finish(at, p)
	return nil
}

// matchArrival compares a message, whose first frame has arrived, with its Recv. Without a Recv it
// adds the message to the matcher.
func (in *recvPipe) matchArrival(at messageKey, p *inbound) {
	if p.to != nil {
		p.to.fits(p)
		return
	}
	c := in.c
	c.Counts.Mu.Lock()
	claims := c.messages.matcher.Arrive(message.Arrival{
		Source: in.source, Tag: at.tag, Number: at.number,
		Segment: control.MessageSegment(&c.cfg, p.header.after),
	})
	assign(claims)
	c.Counts.Mu.Unlock()
	if len(claims) > 0 {
		c.Wake(c.cfg.Rank)
	}
}

func (in *recvPipe) findIncoming(at messageKey) *inbound {
	p := in.incoming[at]
	if p == nil {
		if in.incoming == nil {
			in.incoming = map[messageKey]*inbound{}
		}
		p = &inbound{}
		in.incoming[at] = p
	}
	return p
}

// finish ends the Recv of a message that is complete or does not match. The caller holds in.mu.
func (in *recvPipe) finish(at messageKey, p *inbound) {
	if p.to == nil || p.to.err == nil && p.got < int64(p.header.total) {
		return
	}
	if p.got == int64(p.header.total) {
		delete(in.incoming, at)
	}
	p.to.ended.Store(true)
	p.to.c.Wake(p.to.c.cfg.Rank)
}

func (in *recvPipe) errInvalidFrame(h *frameHeader) error {
	return fmt.Errorf("rank %d of the world sent an invalid frame in group %s: offset %d in message "+
		"%d with tag %d and %d bytes", in.c.cfg.Ranks[in.source], in.c.cfg.Name(), h.offset, h.number,
		h.tag, h.total)
}

// cannotArrive returns an error in a strict group if no rank can still send the Recv's message.
// Otherwise the Recv would keep this rank from reaching the collective that compares all ranks'
// message balances.
func (r *receive) cannotArrive() error {
	c := r.c
	if !c.cfg.Strict {
		return nil
	}
	from := c.Others()
	if r.plan.Root != driver.AnySource {
		from = []int{r.plan.Root}
	}
	if !slices.ContainsFunc(from, r.mayArrive) {
		return c.Unbalanced(r.after + 1)
	}
	return nil
}

// mayArrive reports whether a message from the source may still match the Recv. It may if the
// source has not called the collective that follows the Recv, or if an earlier message's first
// frame is still missing. The source publishes its count of messages before that collective, so
// mayArrive reads the ticket first.
func (r *receive) mayArrive(source int) bool {
	c := r.c
	if c.TicketsOf(source) <= r.after {
		return true
	}
	in, box := &c.messages.recvPipes[source], c.pipe(source, c.cfg.Rank)
	sent := spin.LoadAcquire64(&box.posted)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.begun != sent || r.ended.Load() {
		return true
	}
	if !r.claimed.Load() {
		return false
	}
	p := in.incoming[messageKey{r.plan.Tag, r.number}]
	return r.source != source || p != nil && p.begun
}
