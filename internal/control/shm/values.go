package shm

import (
	"context"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

var _ driver.Named = (*namedValue)(nil)

// namedValue exchanges driver.Words under a name. In each step, every rank posts its words to a
// line in its slot for the name, and reads the other ranks' lines. Even and odd steps use different
// lines. Each rank assigns slots in the order in which it first uses names, so ranks may use
// different slots for a name.
type namedValue struct {
	g          *Group
	name       string
	isOrdered  bool       // whether Gather is ordered with collectives (see driver.Values)
	digest     uint64     // hash of the name
	slotNumber int        // index of ownSlot
	ownSlot    *valueSlot // this rank's slot for the name
	step       uint64     // last step posted by this rank
	otherRanks []int      // group ranks
	// peerSlots caches the slots of other ranks, by group rank. Gather and Group.Inspect may set an
	// entry concurrently.
	peerSlots []atomic.Pointer[valueSlot]
}

// newNamedValue assigns this rank's next slot to a name. The caller must hold g.Mu.
func newNamedValue(g *Group, name string, isOrdered bool) *namedValue {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	slotNumber := len(g.namedValues)
	n := &namedValue{
		g:          g,
		name:       name,
		isOrdered:  isOrdered,
		digest:     hash.Sum64(),
		slotNumber: slotNumber,
		ownSlot:    &g.ownBlock.values[slotNumber],
		otherRanks: g.OtherRanks(),
		peerSlots:  make([]atomic.Pointer[valueSlot], len(g.blocks)),
	}
	copy(n.ownSlot.name[:], name)
	spin.StoreRelease64(&n.ownSlot.size, uint64(len(name))) // lets other ranks read the name
	return n
}

// Gather implements driver.Named.
func (n *namedValue) Gather(ctx context.Context, ownWords driver.Words, all []driver.Words) error {
	g := n.g
	if err := g.BeginUse(); err != nil {
		return err
	}

	defer g.EndUse()
	if g.HasFailed() {
		return g.Cause()
	}

	n.step++
	if g.peerFailed() {
		return g.fail(g.peerFault(n.callText))
	}

	// All ranks have posted step n.step-1, so none still reads this line, which holds step n.step-2.
	ownLine := unsafe.Pointer(&n.ownSlot.lines[n.step%2])
	spin.PutLine(ownLine, n.step, n.digest, unsafe.Pointer(&ownWords), spin.LinePayload)
	g.wakeSleepers()
	all[g.cfg.Rank] = ownWords
	for _, r := range n.otherRanks {
		if !g.PollLonger(ctx, n.postedStep(r), n.step) {
			if err := n.awaitAll(ctx); err != nil {
				return g.fail(err)
			}
		}

		if !n.copyWords(r, &all[r]) {
			step := spin.LoadAcquire64(n.postedStep(r))
			return g.fail(fmt.Errorf("%s: rank %d has written invalid data for step %d",
				n.callText(), g.cfg.Ranks[r], step))
		}
	}

	nextLine := unsafe.Pointer(&n.ownSlot.lines[(n.step+1)%2])
	spin.PrefetchWrite(nextLine)
	return nil
}

func (n *namedValue) callText() string {
	return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), n.step, n.g.cfg.Name())
}

// postedStep returns the address of the step in a peer's line. While the peer has no slot for the
// name, it returns &noStep.
func (n *namedValue) postedStep(peer int) *uint64 {
	s := n.peerSlots[peer].Load()
	if s == nil {
		s = n.findSlot(peer)
	}

	if s == nil {
		return &noStep
	}

	return &s.lines[n.step%2].step
}

var noStep uint64 // always 0

// findSlot returns a peer's slot for the name, or nil if the peer has not used the name yet.
func (n *namedValue) findSlot(peer int) *valueSlot {
	b := n.g.blocks[peer]
	for i := range b.values {
		s := &b.values[i]
		isUnused := spin.LoadAcquire64(&s.size) == 0
		if isUnused {
			return nil // later slots are unused, too
		}

		if s.hasName(n.name) {
			n.peerSlots[peer].Store(s)
			return s
		}
	}

	return nil
}

func (s *valueSlot) hasName(name string) bool {
	return spin.LoadAcquire64(&s.size) == uint64(len(name)) && string(s.name[:len(name)]) == name
}

// awaitAll waits for the lines of all ranks. Meanwhile, this rank's status shows the wait to other
// ranks.
func (n *namedValue) awaitAll(ctx context.Context) error {
	s := &n.g.ownBlock.status
	slotPlusOne := uint64(n.slotNumber) + 1
	spin.StoreRelease64(&s.valueSince, sys.Monotonic())
	spin.StoreRelease64(&s.value, slotPlusOne)
	// A concurrent Gather of another name may have replaced s.value.
	defer atomic.CompareAndSwapUint64(&s.value, slotPlusOne, 0)
	return n.g.waitSlowly(ctx, &slowWait{
		wordOf: n.postedStep, want: n.step, awaited: n.otherRanks,
		callText: n.callText, isOrdered: n.isOrdered,
	})
}

// copyWords copies a peer's words. It returns false if the line is for another step or name, or
// changes during the copy.
func (n *namedValue) copyWords(peer int, words *driver.Words) bool {
	s := n.peerSlots[peer].Load() // not nil, because the peer has posted the step
	l := &s.lines[n.step%2]
	const wordBytes = 8
	for i := range words {
		word := (*uint64)(unsafe.Pointer(&l.payload[wordBytes*i]))
		words[i] = spin.LoadAcquire64(word)
	}

	return spin.LoadAcquire64(&l.digest) == n.digest && spin.LoadAcquire64(&l.step) == n.step
}

// describeValue describes the Gather in which a rank waits, as in `in value "loss" for 2s`, or
// returns "".
func (b *block) describeValue() string {
	slotPlusOne := spin.LoadAcquire64(&b.status.value)
	isWaiting := slotPlusOne != 0 && slotPlusOne <= driver.MaxValueNames
	if !isWaiting {
		return ""
	}

	since := spin.LoadAcquire64(&b.status.valueSince)
	waited := time.Duration(sys.Monotonic() - since)
	name := control.Printable(b.values[slotPlusOne-1].nameText())
	return fmt.Sprintf("in %s for %v", driver.ValueText(name), waited.Round(time.Millisecond))
}

// nameText returns the name, or "" if a faulty rank has written an invalid size.
func (s *valueSlot) nameText() string {
	size := spin.LoadAcquire64(&s.size)
	if size > driver.MaxValueName {
		return ""
	}

	return string(s.name[:size])
}
