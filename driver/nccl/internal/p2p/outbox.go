package p2p

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/spin"
)

// outbox is what this rank has for messages to its peers. The owner's lock guards it.
type outbox struct {
	*Group
	outlets []outlet // by group rank
	staging staging
}

// outlet is what this rank has for messages to a peer.
type outlet struct {
	mailbox *mailbox   // the peer's
	next    uint64     // places handed out that were never used before
	free    []uint64   // places that are free again
	staged  []outgoing // messages that the peer has not taken, in the order of calls
}

// outgoing is what a message to a peer occupies: its place among the words, and its block.
type outgoing struct {
	place uint64
	block block
}

// marksTo are the words of messages to a peer.
func (o *outbox) marksTo(peer int) *marks {
	return o.outlets[peer].mailbox.marks(o.Config.Rank)
}

// reclaim takes back what messages occupied that the peer has taken: of all of them, or only of the
// first ones.
func (o *outbox) reclaim(out *outlet, all bool) {
	marks := out.mailbox.marks(o.Config.Rank)
	taken := func(s outgoing) bool { return atomic.LoadUint32(&marks.taken[s.place]) == 1 }
	give := func(s outgoing) {
		o.staging.put(s.block)
		out.free = append(out.free, s.place)
	}
	if all {
		out.staged = slices.DeleteFunc(out.staged, func(s outgoing) bool {
			done := taken(s)
			if done {
				give(s)
			}
			return done
		})
		return
	}
	n := 0
	for n < len(out.staged) && taken(out.staged[n]) {
		give(out.staged[n])
		n++
	}
	out.staged = slices.Delete(out.staged, 0, n)
}

// errPlaces says that waiting gives a Send no place.
var errPlaces = fmt.Errorf("graphs that are open have all %d Sends to that rank that there can "+
	"be: close some: %w", Places, driver.ErrUnsupported)

// roomless reports whether a Send has not happened, since it found no room.
func roomless(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, errPlaces)
}

// stage finds a place and a block for a message. If there are none it waits until peers have taken
// some, for as long as is left of the timeout; for memory less long, since a peer may be unable to
// go on before this rank does. o.Mu is held.
func (o *outbox) stage(p *Call) (st outgoing, err error) {
	out := &o.outlets[p.Root]
	o.reclaim(out, false)
	if err := o.awaitRoom(p, true); err != nil {
		return outgoing{}, err
	}
	if st.block, err = o.awaitBlock(p.bytes()); err != nil {
		return outgoing{}, err
	}
	if n := len(out.free); n > 0 {
		st.place, out.free = out.free[n-1], out.free[:n-1]
	} else {
		st.place = out.next
		out.next++
	}
	marks := out.mailbox.marks(o.Config.Rank)
	atomic.StoreUint32(&marks.taken[st.place], 0)
	return st, nil
}

// awaitRoom waits until the peer can be told of a message, and, if it needs one, until there is a
// place for it.
func (o *outbox) awaitRoom(p *Call, place bool) error {
	out := &o.outlets[p.Root]
	box := out.mailbox.box(o.Config.Rank)
	begin := time.Now()
	for turn := 0; ; turn++ {
		if place && len(out.free) == 0 && out.next == Places {
			o.reclaim(out, true)
		}
		if place && len(out.free) == 0 && out.next == Places && len(out.staged) == 0 {
			return fmt.Errorf("%s: %w", o.describe(p, 0), errPlaces)
		}
		if box.room() && (!place || len(out.free) > 0 || out.next < Places) {
			return nil
		}
		if err := o.Plane.Cause(); err != nil {
			return err
		}
		err := o.known.Absent(p.Root, begin, func() string {
			return fmt.Sprintf("%s, before which %d are under way", o.describe(p, 0), Places)
		})
		if err != nil {
			return o.Plane.Fail(err)
		}
		rest(turn)
	}
}

// askAgain is how long a device that had no memory is not asked for some.
const askAgain = 10 * time.Millisecond

// awaitBlock finds a block, and waits for one as long as that may help.
func (o *outbox) awaitBlock(bytes int64) (block, error) {
	s := &o.staging
	b, ok := s.take(bytes)
	if ok {
		return b, nil
	}
	begin := time.Now()
	var asked time.Time // when the device was last asked for memory
	var failed error
	for turn := 0; ; turn++ {
		waits := o.reclaimAll()
		if b, ok = s.take(bytes); ok {
			return b, nil
		}
		if time.Since(asked) > askAgain {
			if failed = s.grow(o.Group, bytes); failed == nil {
				continue
			}
			asked = time.Now()
		}
		if !errors.Is(failed, driver.ErrOutOfMemory) || !waits || o.Plane.Cause() != nil ||
			time.Since(begin) > o.Device.GPU.Timeout/4 {
			return block{}, failed
		}
		rest(turn)
	}
}

// reclaimAll is reclaim for all peers, and reports whether some have yet to take a message.
func (o *outbox) reclaimAll() (some bool) {
	for i := range o.outlets {
		if out := &o.outlets[i]; out.mailbox != nil {
			o.reclaim(out, true)
			some = some || len(out.staged) > 0
		}
	}
	return some
}

// brief is how many looks are taken without a pause.
const brief = 20

// rest passes the time between two looks at words that GPUs write.
func rest(turn int) {
	if turn > brief {
		pause := min(gpu.Nap, time.Duration(turn-brief)*time.Microsecond)
		time.Sleep(pause)
	}
}

// fill queues the copy of a message to its block, and the word that says so. It is called on a
// thread of the device.
func (o *outbox) fill(p *Call, st outgoing, on cuda.Stream) error {
	gpu := o.Device.GPU.CUDA
	to := o.outlets[p.Root].mailbox
	if err := move(gpu, o.staging.address(st.block), p.Address, p.bytes(), on); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, to.at(&to.marks(o.Config.Rank).full[st.place]), 1)
}

// tell tells the peer of a message. o.Mu is held.
func (o *outbox) tell(e *End, st outgoing, again uint64) {
	p := e.call
	h := header{
		tag: uint64(p.Tag), number: e.Number, bytes: uint64(p.bytes()), digest: p.Digest,
		after: e.After, place: st.place, segment: uint64(st.block.segment),
		offset: uint64(st.block.offset), again: again,
	}
	if st.block.segment > 0 {
		h.size = uint64(o.staging.segments[st.block.segment-1].bytes)
	}
	to := o.outlets[p.Root].mailbox
	to.box(o.Config.Rank).post(&h)
	to.bell().ring()
}

// untaken lists the messages that a peer has not heard of before it left. o.Mu is held.
func (o *outbox) untaken(peer int) (all []driver.MessageEnds) {
	m := o.outlets[peer].mailbox
	if m == nil || atomic.LoadUint32(&m.bell().left) == 0 {
		return nil
	}
	box := m.box(o.Config.Rank)
	read := spin.LoadAcquire64(&box.read)
	for n := range min(box.posted-read, Places) {
		h := &box.headers[(read+1+n)%Places]
		all = append(all, driver.MessageEnds{
			From: o.Config.Ranks[o.Config.Rank], To: o.Config.Ranks[peer], Tag: int(h.tag), Number: h.number,
			Sent: 1,
		})
	}
	return all
}

// move queues a copy, if there is something to copy.
func move(gpu *cuda.Driver, dst, src uintptr, bytes int64, on cuda.Stream) error {
	if bytes == 0 {
		return nil
	}
	return gpu.MemcpyAsync(dst, src, bytes, on)
}
