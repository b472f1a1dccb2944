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
//
// A message occupies two resources until the receiver has copied it: a block of staging memory on
// this rank's GPU, which holds the data, and a slot. A slot is a pair of flags in the receiver's
// mailbox (shared host memory), by which both ranks follow the state of the message.
type outbox struct {
	config       *driver.GroupConfig
	plane        control.Plane    // the connection between ranks outside NCCL
	messagePlane control.Messages // the part of plane that tracks messages
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

// peerOutbox holds the state of this rank's messages to one peer.
type peerOutbox struct {
	mailbox     *mailbox        // the peer's mailbox, or nil if it is not mapped
	firstUnused uint64          // lowest slot that has never been used
	freeSlots   []uint64        // slots that have been used and freed
	uncopied    []stagedMessage // not known to be copied by the peer, in the order of calls
}

// stagedMessage holds the resources of a message.
type stagedMessage struct {
	slot  uint64 // index in the peer's flags
	block block
}

// flagsTo returns the flags of this rank's messages to a peer.
func (o *outbox) flagsTo(peer int) *flags {
	return o.peers[peer].mailbox.flags(o.config.Rank)
}

// reclaimOldest frees the resources of copied messages to a peer, in the order of their calls. It
// stops at the first uncopied message, which makes it fast.
func (o *outbox) reclaimOldest(out *peerOutbox) {
	copiedCount := 0
	for _, s := range out.uncopied {
		if !o.reclaimIfCopied(out, s) {
			break
		}

		copiedCount++
	}

	out.uncopied = slices.Delete(out.uncopied, 0, copiedCount)
}

// reclaim frees the resources of all copied messages to a peer.
func (o *outbox) reclaim(out *peerOutbox) {
	out.uncopied = slices.DeleteFunc(out.uncopied, func(s stagedMessage) bool {
		return o.reclaimIfCopied(out, s)
	})
}

// reclaimIfCopied frees the resources of a message if the peer has copied it, and reports whether
// it has.
func (o *outbox) reclaimIfCopied(out *peerOutbox, s stagedMessage) bool {
	words := out.mailbox.flags(o.config.Rank)
	if atomic.LoadUint32(&words.copied[s.slot]) != 1 {
		return false
	}

	o.staging.freeBlock(s.block)
	out.freeSlots = append(out.freeSlots, s.slot)
	return true
}

// reclaimAll calls reclaim for all peers. It reports whether any message is still uncopied.
func (o *outbox) reclaimAll() (hasUncopied bool) {
	for i := range o.peers {
		out := &o.peers[i]
		if out.mailbox == nil {
			continue
		}

		o.reclaim(out)
		if len(out.uncopied) > 0 {
			hasUncopied = true
		}
	}

	return hasUncopied
}

var errNoSlot = fmt.Errorf("graphs that are not closed use all %d slots for Sends to that rank: %w",
	Slots, driver.ErrUnsupported)

// isOutOfRoom reports whether an error of reserve means that there was no slot or memory for a
// Send. The Send then had no effect, and the group has not failed.
func isOutOfRoom(err error) bool {
	return errors.Is(err, driver.ErrOutOfMemory) || errors.Is(err, errNoSlot)
}

// reserve waits for a slot and a block of staging memory, and takes them for a message. The wait
// for a block is brief, because the peer might itself be waiting for this rank.
func (o *outbox) reserve(p *Plan) (stagedMessage, error) {
	out := &o.peers[p.Root]
	o.reclaimOldest(out)
	const needsSlot = true
	if err := o.awaitRoom(p, needsSlot); err != nil {
		return stagedMessage{}, err
	}

	b, err := o.awaitBlock(p.bytes())
	if err != nil {
		return stagedMessage{}, err
	}

	staged := stagedMessage{slot: out.takeSlot(), block: b}
	atomic.StoreUint32(&o.flagsTo(p.Root).copied[staged.slot], 0)
	return staged, nil
}

func (out *peerOutbox) hasSlot() bool {
	return len(out.freeSlots) > 0 || out.firstUnused < Slots
}

// takeSlot takes a slot. Call it only if hasSlot returns true.
func (out *peerOutbox) takeSlot() uint64 {
	n := len(out.freeSlots)
	if n == 0 {
		slot := out.firstUnused
		out.firstUnused++
		return slot
	}

	slot := out.freeSlots[n-1]
	out.freeSlots = out.freeSlots[:n-1]
	return slot
}

// awaitRoom waits for room for a header in the peer's mailbox (see announce). If needsSlot is set,
// it also waits for a free slot. It does not reserve either. If the peer may never make room, it
// makes the group fail.
func (o *outbox) awaitRoom(p *Plan, needsSlot bool) error {
	out := &o.peers[p.Root]
	ring := out.mailbox.headersFrom(o.config.Rank)
	const unknownNumber = 0
	begin := time.Now()
	for polls := 0; ; polls++ {
		if needsSlot && !out.hasSlot() {
			o.reclaim(out)
			canBecomeFree := len(out.uncopied) > 0 // graphs keep their slots until they are closed
			if !out.hasSlot() && !canBecomeFree {
				message := control.DescribeMessage(o.config, p.Call, unknownNumber)
				return fmt.Errorf("%s: %w", message, errNoSlot)
			}
		}

		isSlotMissing := needsSlot && !out.hasSlot()
		if ring.hasRoom() && !isSlotMissing {
			return nil
		}

		if err := o.plane.Cause(); err != nil {
			return err
		}

		err := o.messagePlane.DiagnoseMessage(p.Root, begin, func() string {
			return fmt.Sprintf("%s, with %d unfinished messages before it",
				control.DescribeMessage(o.config, p.Call, unknownNumber), Slots)
		})
		if err != nil {
			return o.plane.Fail(err)
		}

		pause(polls)
	}
}

const growInterval = 10 * time.Millisecond // between attempts to add a staging segment

// awaitBlock allocates a block of staging memory. If there is none, it adds memory. If the device
// is out of memory, it waits for peers to copy messages and reuses their blocks. This wait is
// limited to a quarter of the timeout.
func (o *outbox) awaitBlock(bytes int64) (block, error) {
	s := &o.staging
	b, ok := s.allocateBlock(bytes)
	if ok {
		return b, nil
	}

	begin := time.Now()
	var lastFailure time.Time // zero, so that the first round calls grow and sets growErr
	var growErr error
	for polls := 0; ; polls++ {
		hasUncopied := o.reclaimAll()
		b, ok = s.allocateBlock(bytes)
		if ok {
			return b, nil
		}

		if time.Since(lastFailure) > growInterval {
			growErr = s.grow(o.config, bytes)
			if growErr == nil {
				continue
			}

			lastFailure = time.Now()
		}

		isOutOfMemory := errors.Is(growErr, driver.ErrOutOfMemory)
		canGetBlock := hasUncopied && o.plane.Cause() == nil
		isLate := time.Since(begin) > o.device.GPU.Timeout/4
		if !isOutOfMemory || !canGetBlock || isLate {
			return block{}, growErr
		}

		pause(polls)
	}
}

const busyPolls = 20 // number of polls before pause begins to sleep

// pause waits between two polls. It sleeps longer, up to gpu.PollPause, as polls grows.
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
		dst := o.staging.address(staged.block)
		if err := api.MemcpyAsync(dst, p.Address, bytes, s); err != nil {
			return err
		}
	}

	arrived := &box.flags(o.config.Rank).arrived[staged.slot]
	const isSet = 1
	return api.StreamWriteValue(s, box.deviceAddress(arrived), isSet)
}

// announce posts the header of a message in the receiver's mailbox, and wakes the receiver. The
// data may arrive later.
func (o *outbox) announce(e *End, staged stagedMessage) {
	p := e.plan
	h := header{
		tag: uint64(p.Tag), number: e.Number, bytes: uint64(p.bytes()), digest: p.Digest,
		collectivesBefore: e.After, slot: staged.slot, segment: uint64(staged.block.segment),
		offset: uint64(staged.block.offset),
	}
	if e.isCaptured {
		h.inGraph = 1
	}

	if staged.block.segment > 0 { // the message is not empty
		h.segmentBytes = uint64(o.staging.segments[staged.block.segment-1].bytes)
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
	unreadCount := min(ring.postedCount-readCount, Slots) // a faulty peer may write any readCount
	for i := range unreadCount {
		number := readCount + 1 + i
		h := &ring.headers[number%Slots]
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
