package p2p

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/spin"
)

// outbox holds the sending side of this rank's messages. The owner's lock guards it.
type outbox struct {
	*Group
	peers   []peerOutbox // by group rank
	staging staging
}

// peerOutbox holds the sending side of the messages to one peer.
type peerOutbox struct {
	mailbox *mailbox   // the peer's
	next    uint64     // slots handed out that were never used before
	free    []uint64   // slots that are free again
	staged  []outgoing // messages that the peer has not taken, in the order of calls
}

// outgoing holds the slot and the block that a message to a peer occupies.
type outgoing struct {
	slot  uint64
	block block
}

// flagsTo are the words of messages to a peer.
func (o *outbox) flagsTo(peer int) *flags {
	return o.peers[peer].mailbox.flags(o.Config.Rank)
}

// reclaim takes back what messages occupied that the peer has taken: of all of them, or only of the
// first ones.
func (o *outbox) reclaim(out *peerOutbox, all bool) {
	marks := out.mailbox.flags(o.Config.Rank)
	taken := func(s outgoing) bool { return atomic.LoadUint32(&marks.taken[s.slot]) == 1 }
	give := func(s outgoing) {
		o.staging.put(s.block)
		out.free = append(out.free, s.slot)
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

// errNoSlot says that waiting gives a Send no slot.
var errNoSlot = fmt.Errorf("graphs that are open have all %d Sends to that rank that there can "+
	"be: close some: %w", Slots, driver.ErrUnsupported)

// isOutOfRoom reports whether a Send has not happened, since it found no room.
func isOutOfRoom(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, errNoSlot)
}

// stage finds a slot and a block for a message. If there are none it waits until peers have taken
// some, for as long as is left of the timeout; for memory less long, since a peer may be unable to
// go on before this rank does. o.Mu is held.
func (o *outbox) stage(p *Plan) (st outgoing, err error) {
	out := &o.peers[p.Root]
	o.reclaim(out, false)
	if err := o.awaitRoom(p, true); err != nil {
		return outgoing{}, err
	}
	if st.block, err = o.awaitBlock(p.bytes()); err != nil {
		return outgoing{}, err
	}
	if n := len(out.free); n > 0 {
		st.slot, out.free = out.free[n-1], out.free[:n-1]
	} else {
		st.slot = out.next
		out.next++
	}
	marks := out.mailbox.flags(o.Config.Rank)
	atomic.StoreUint32(&marks.taken[st.slot], 0)
	return st, nil
}

// awaitRoom waits until the peer has room for the header of a message, and, if it needs one, until
// there is a slot for it.
func (o *outbox) awaitRoom(p *Plan, place bool) error {
	out := &o.peers[p.Root]
	box := out.mailbox.ring(o.Config.Rank)
	begin := time.Now()
	for turn := 0; ; turn++ {
		if place && len(out.free) == 0 && out.next == Slots {
			o.reclaim(out, true)
		}
		if place && len(out.free) == 0 && out.next == Slots && len(out.staged) == 0 {
			return fmt.Errorf("%s: %w", control.DescribeMessage(o.Config, p.Call, 0), errNoSlot)
		}
		if box.room() && (!place || len(out.free) > 0 || out.next < Slots) {
			return nil
		}
		if err := o.Plane.Cause(); err != nil {
			return err
		}
		err := o.counts.DiagnoseMessage(p.Root, begin, func() string {
			return fmt.Sprintf("%s, before which %d are under way",
				control.DescribeMessage(o.Config, p.Call, 0), Slots)
		})
		if err != nil {
			return o.Plane.Fail(err)
		}
		pause(turn)
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
		pause(turn)
	}
}

// reclaimAll is reclaim for all peers, and reports whether some have yet to take a message.
func (o *outbox) reclaimAll() (some bool) {
	for i := range o.peers {
		if out := &o.peers[i]; out.mailbox != nil {
			o.reclaim(out, true)
			some = some || len(out.staged) > 0
		}
	}
	return some
}

// spinTurns is how many looks are taken without a pause.
const spinTurns = 20

// pause passes the time between two looks at words that GPUs write.
func pause(turn int) {
	if turn > spinTurns {
		pause := min(gpu.Nap, time.Duration(turn-spinTurns)*time.Microsecond)
		time.Sleep(pause)
	}
}

// queueSend queues the copy of a message to its block, and the word that says so. It is called on a
// thread of the device.
func (o *outbox) queueSend(p *Plan, st outgoing, on cuda.Stream) error {
	gpu := o.Device.GPU.CUDA
	to := o.peers[p.Root].mailbox
	if err := move(gpu, o.staging.address(st.block), p.Address, p.bytes(), on); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, to.at(&to.flags(o.Config.Rank).full[st.slot]), 1)
}

// announce writes the header of a message for the peer. o.Mu is held.
func (o *outbox) announce(e *End, st outgoing, again uint64) {
	p := e.plan
	h := header{
		tag: uint64(p.Tag), number: e.Number, bytes: uint64(p.bytes()), digest: p.Digest,
		after: e.After, slot: st.slot, segment: uint64(st.block.segment),
		offset: uint64(st.block.offset), replayed: again,
	}
	if st.block.segment > 0 {
		h.size = uint64(o.staging.segments[st.block.segment-1].bytes)
	}
	to := o.peers[p.Root].mailbox
	to.ring(o.Config.Rank).post(&h)
	to.wakeup().wake()
}

// unread lists the messages that a peer has not read before it left. o.Mu is held.
func (o *outbox) unread(peer int) (all []driver.MessageEnds) {
	m := o.peers[peer].mailbox
	if m == nil || atomic.LoadUint32(&m.wakeup().closed) == 0 {
		return nil
	}
	box := m.ring(o.Config.Rank)
	read := spin.LoadAcquire64(&box.read)
	for n := range min(box.posted-read, Slots) {
		h := &box.headers[(read+1+n)%Slots]
		all = append(all, driver.MessageEnds{
			From: o.Config.Ranks[o.Config.Rank], To: o.Config.Ranks[peer], Tag: int(h.tag),
			Number: h.number, Sent: 1,
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
