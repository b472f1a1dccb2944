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

// outbox sends this rank's messages. The callers of its methods must hold Group.Mu.
type outbox struct {
	config       *driver.GroupConfig
	plane        control.Plane // the connection between ranks outside NCCL
	messagePlane control.Messages
	device       *Device
	peers        []peerOutbox // indexed by group rank
	staging      staging
}

func newOutbox(g *Group, messagePlane control.Messages) *outbox {
	return &outbox{
		config: g.Config, plane: g.Plane, messagePlane: messagePlane, device: g.Device,
		peers: make([]peerOutbox, len(g.Config.Ranks)), staging: staging{device: g.Device},
	}
}

type peerOutbox struct {
	mailbox     *mailbox // the peer's mailbox, or nil if it is not mapped
	firstUnused uint64   // lowest slot that has never been used
	freeSlots   []uint64
	uncopied    []stagedMessage // not known to be copied by the peer, in the order of calls
}

type stagedMessage struct {
	slot  uint64 // index in the peer's flags
	block block
}

func (o *outbox) flagsTo(peer int) *flags {
	return o.peers[peer].mailbox.flags(o.config.Rank)
}

// reclaim frees the slots and staging blocks of copied messages. Unless checkAll is set, it stops
// at the first uncopied message.
func (o *outbox) reclaim(out *peerOutbox, checkAll bool) {
	words := out.mailbox.flags(o.config.Rank)
	isCopied := func(s stagedMessage) bool { return atomic.LoadUint32(&words.copied[s.slot]) == 1 }
	free := func(s stagedMessage) {
		o.staging.freeBlock(s.block)
		out.freeSlots = append(out.freeSlots, s.slot)
	}
	if checkAll {
		out.uncopied = slices.DeleteFunc(out.uncopied, func(s stagedMessage) bool {
			remove := isCopied(s)
			if remove {
				free(s)
			}
			return remove
		})
		return
	}
	copiedCount := 0
	for copiedCount < len(out.uncopied) && isCopied(out.uncopied[copiedCount]) {
		free(out.uncopied[copiedCount])
		copiedCount++
	}
	out.uncopied = slices.Delete(out.uncopied, 0, copiedCount)
}

var errNoSlot = fmt.Errorf("graphs that are not closed use all %d slots for Sends to that rank: %w",
	Slots, driver.ErrUnsupported)

// isOutOfRoom reports whether a Send had no effect, because there was no slot or memory for it.
func isOutOfRoom(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, errNoSlot)
}

// reserve waits for a slot and a block of staging memory, and takes them for a message. The wait
// for a block is brief, because the peer might itself be waiting for this rank.
func (o *outbox) reserve(p *Plan) (staged stagedMessage, err error) {
	out := &o.peers[p.Root]
	o.reclaim(out, false)
	if err := o.awaitRoom(p, true); err != nil {
		return stagedMessage{}, err
	}
	if staged.block, err = o.awaitBlock(p.bytes()); err != nil {
		return stagedMessage{}, err
	}
	if n := len(out.freeSlots); n > 0 {
		staged.slot, out.freeSlots = out.freeSlots[n-1], out.freeSlots[:n-1]
	} else {
		staged.slot = out.firstUnused
		out.firstUnused++
	}
	atomic.StoreUint32(&out.mailbox.flags(o.config.Rank).copied[staged.slot], 0)
	return staged, nil
}

// awaitRoom waits for room for a header in the peer's ring and, if needsSlot is set, for a free
// slot. It does not reserve either.
func (o *outbox) awaitRoom(p *Plan, needsSlot bool) error {
	out := &o.peers[p.Root]
	ring := out.mailbox.headersFrom(o.config.Rank)
	hasSlot := func() bool { return len(out.freeSlots) > 0 || out.firstUnused < Slots }
	begin := time.Now()
	for polls := 0; ; polls++ {
		if needsSlot && !hasSlot() {
			o.reclaim(out, true)
		}
		if needsSlot && !hasSlot() && len(out.uncopied) == 0 { // graphs keep all slots
			return fmt.Errorf("%s: %w", control.DescribeMessage(o.config, p.Call, 0), errNoSlot)
		}
		if ring.hasRoom() && (!needsSlot || hasSlot()) {
			return nil
		}
		if err := o.plane.Cause(); err != nil {
			return err
		}
		err := o.messagePlane.DiagnoseMessage(p.Root, begin, func() string {
			return fmt.Sprintf("%s, with %d unfinished messages before it",
				control.DescribeMessage(o.config, p.Call, 0), Slots)
		})
		if err != nil {
			return o.plane.Fail(err)
		}
		pause(polls)
	}
}

const growInterval = 10 * time.Millisecond // between attempts to add a segment

// awaitBlock allocates a block of staging memory. If the device is out of memory, it waits a
// quarter of the timeout while peers might copy messages, whose blocks can then be used again.
func (o *outbox) awaitBlock(bytes int64) (block, error) {
	s := &o.staging
	b, ok := s.allocateBlock(bytes)
	if ok {
		return b, nil
	}
	begin := time.Now()
	var lastFailure time.Time
	var growErr error
	for polls := 0; ; polls++ {
		hasUncopied := o.reclaimAll()
		if b, ok = s.allocateBlock(bytes); ok {
			return b, nil
		}
		if time.Since(lastFailure) > growInterval {
			if growErr = s.grow(o.config, bytes); growErr == nil {
				continue
			}
			lastFailure = time.Now()
		}
		if !errors.Is(growErr, driver.ErrOutOfMemory) || !hasUncopied || o.plane.Cause() != nil ||
			time.Since(begin) > o.device.GPU.Timeout/4 {
			return block{}, growErr
		}
		pause(polls)
	}
}

func (o *outbox) reclaimAll() (hasUncopied bool) {
	for i := range o.peers {
		if out := &o.peers[i]; out.mailbox != nil {
			o.reclaim(out, true)
			hasUncopied = hasUncopied || len(out.uncopied) > 0
		}
	}
	return hasUncopied
}

const busyPolls = 20 // number of polls before pause begins to sleep

// pause waits between two polls.
func pause(polls int) {
	if polls > busyPolls {
		time.Sleep(min(gpu.PollPause, time.Duration(polls-busyPolls)*time.Microsecond))
	}
}

// queueSend queues the copy to the staging block, and a write that marks the message as arrived.
// The CUDA context must be current.
func (o *outbox) queueSend(p *Plan, staged stagedMessage, s cuda.Stream) error {
	api := o.device.GPU.CUDA
	box := o.peers[p.Root].mailbox
	if bytes := p.bytes(); bytes > 0 {
		if err := api.MemcpyAsync(o.staging.address(staged.block), p.Address, bytes, s); err != nil {
			return err
		}
	}
	arrived := &box.flags(o.config.Rank).arrived[staged.slot]
	return api.StreamWriteValue(s, box.deviceAddress(arrived), 1)
}

// announce posts the header of a message. inGraph is 1 for a Send in a graph, and 0 for others.
func (o *outbox) announce(e *End, staged stagedMessage, inGraph uint64) {
	p := e.plan
	h := header{
		tag: uint64(p.Tag), number: e.Number, bytes: uint64(p.bytes()), digest: p.Digest,
		collectivesBefore: e.After, slot: staged.slot, segment: uint64(staged.block.segment),
		offset: uint64(staged.block.offset), inGraph: inGraph,
	}
	if staged.block.segment > 0 {
		h.size = uint64(o.staging.segments[staged.block.segment-1].bytes)
	}
	box := o.peers[p.Root].mailbox
	box.headersFrom(o.config.Rank).post(&h)
	box.wakeup().wake()
}

// unreadMessages lists the messages that a peer had not read when it closed its mailbox.
func (o *outbox) unreadMessages(peer int) (unread []driver.MessageEnds) {
	box := o.peers[peer].mailbox
	if box == nil || atomic.LoadUint32(&box.wakeup().closed) == 0 {
		return nil
	}
	ring := box.headersFrom(o.config.Rank)
	readCount := spin.LoadAcquire64(&ring.readCount)
	for n := range min(ring.postedCount-readCount, Slots) {
		h := &ring.headers[(readCount+1+n)%Slots]
		unread = append(unread, driver.MessageEnds{
			From: o.config.Ranks[o.config.Rank], To: o.config.Ranks[peer], Tag: int(h.tag),
			Number: h.number, Sent: 1,
		})
	}
	return unread
}

// firstSegmentBytes returns the size of the first staging segment, which is the same on all ranks.
func (o *outbox) firstSegmentBytes() int64 {
	return roundUp(int64(len(o.config.Ranks))*initialBytesPerRank, o.device.GPU.Granularity)
}
