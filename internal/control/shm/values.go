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

var _ driver.Values = (*Group)(nil)

// namedValue implements driver.Named. Every rank posts its words in one of its slots. The n-th
// Gather of a name is step n.
type namedValue struct {
	g          *Group
	name       string
	isOrdered  bool   // see driver.Values.Named
	digest     uint64 // hash of the name; posted with every line
	slotNumber int    // index of ownSlot in block.values
	step       uint64 // last step that this rank has posted
	ownSlot    *valueSlot
	// peerSlots holds the slots of other ranks for this name, by group rank. An entry is nil until
	// this rank has found the slot.
	peerSlots  []atomic.Pointer[valueSlot]
	otherRanks []int // group ranks
}

// newNamedValue publishes a name in this rank's next unused slot.
func newNamedValue(g *Group, name string, isOrdered bool) *namedValue {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	slotNumber := len(g.namedValues)
	n := &namedValue{
		g: g, name: name, isOrdered: isOrdered, digest: hash.Sum64(), slotNumber: slotNumber,
		ownSlot:    &g.ownBlock.values[slotNumber],
		peerSlots:  make([]atomic.Pointer[valueSlot], len(g.blocks)),
		otherRanks: g.OtherRanks(),
	}
	copy(n.ownSlot.name[:], name)
	spin.StoreRelease64(&n.ownSlot.size, uint64(len(name)))
	return n
}

// nameText returns the name, or "" if its size is invalid.
func (s *valueSlot) nameText() string {
	size := spin.LoadAcquire64(&s.size)
	if size > driver.MaxValueName {
		return ""
	}
	return string(s.name[:size])
}

func (s *valueSlot) hasName(name string) bool {
	return spin.LoadAcquire64(&s.size) == uint64(len(name)) && string(s.name[:len(name)]) == name
}

var zeroStep uint64 // never changes

// stepWord returns the word in which a rank posts the current step. It returns the address of
// zeroStep if the rank has not used the name yet.
func (n *namedValue) stepWord(rank int) *uint64 {
	if n.peerSlots[rank].Load() == nil {
		n.findSlot(rank)
	}
	if s := n.peerSlots[rank].Load(); s != nil {
		return &s.lines[n.step&1].step
	}
	return &zeroStep
}

// findSlot sets peerSlots[rank] if the rank has used the name.
func (n *namedValue) findSlot(rank int) {
	b := n.g.blocks[rank]
	for i := range b.values {
		s := &b.values[i]
		isUnused := spin.LoadAcquire64(&s.size) == 0
		switch {
		case isUnused:
			return // the later slots are also unused
		case s.hasName(n.name):
			n.peerSlots[rank].Store(s)
			return
		}
	}
}

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
	line := unsafe.Pointer(&n.ownSlot.lines[n.step&1])
	spin.PutLine(line, n.step, n.digest, unsafe.Pointer(&ownWords), spin.LinePayload)
	g.wakeSleepers()
	all[g.cfg.Rank] = ownWords
	for _, r := range n.otherRanks {
		if !g.pollFor(ctx, n.stepWord(r), n.step, g.budget.briefYields) {
			if err := n.waitSlowly(ctx); err != nil {
				return g.fail(err)
			}
		}
		if !n.copyWords(r, &all[r]) {
			return g.fail(fmt.Errorf("%s: rank %d has written invalid data for step %d",
				n.callText(), g.cfg.Ranks[r], spin.LoadAcquire64(n.stepWord(r))))
		}
	}
	// The next step uses the other line, which all ranks have read before they posted this step.
	spin.PrefetchWrite(unsafe.Pointer(&n.ownSlot.lines[(n.step+1)&1]))
	return nil
}

// copyWords copies the words that a rank has posted in the current step. It returns false if the
// line does not belong to this step and name, or has changed during the copy.
func (n *namedValue) copyWords(rank int, words *driver.Words) bool {
	l := &n.peerSlots[rank].Load().lines[n.step&1]
	for i := range words {
		word := (*uint64)(unsafe.Pointer(&l.payload[8*i]))
		words[i] = spin.LoadAcquire64(word)
	}
	return spin.LoadAcquire64(&l.digest) == n.digest && spin.LoadAcquire64(&l.step) == n.step
}

// waitSlowly waits until all other ranks have posted the current step. Meanwhile, this rank's
// status shows the name.
func (n *namedValue) waitSlowly(ctx context.Context) error {
	s := &n.g.ownBlock.status
	value := uint64(n.slotNumber) + 1 // see status.value
	spin.StoreRelease64(&s.valueSince, sys.Monotonic())
	spin.StoreRelease64(&s.value, value)
	defer atomic.CompareAndSwapUint64(&s.value, value, 0)
	return n.g.waitSlowly(ctx, &slowWait{
		wordOf: n.stepWord, want: n.step, awaited: n.otherRanks,
		callText: n.callText, isOrdered: n.isOrdered,
	})
}

func (n *namedValue) callText() string {
	return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), n.step, n.g.cfg.Name())
}

// describeValue describes the Gather in which a rank waits, or returns "".
func (b *block) describeValue() string {
	number := spin.LoadAcquire64(&b.status.value)
	if number == 0 || number > driver.MaxValueNames {
		return ""
	}
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&b.status.valueSince))
	name := control.Printable(b.values[number-1].nameText())
	return fmt.Sprintf("in %s for %v", driver.ValueText(name), waited.Round(time.Millisecond))
}
