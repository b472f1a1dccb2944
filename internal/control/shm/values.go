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

// namedValue implements driver.Named: with each Gather of a name, every rank gets a few numbers
// (words) of every rank. The n-th Gather of a name is step n.
//
// Every rank has a block of shared memory with a slot for each name that it uses. It chooses the
// slot, so ranks may have different slots for a name. In each step, it posts a line in this slot.
type namedValue struct {
	g          *Group
	name       string
	isOrdered  bool       // see driver.Values.Named
	digest     uint64     // hash of the name; posted with every line
	slotNumber int        // index of ownSlot in block.values
	ownSlot    *valueSlot // this rank's slot
	step       uint64     // last step that this rank has posted
	// peerSlots holds the slots of other ranks for this name, by group rank. An entry is nil until
	// this rank has found the slot. Group.Inspect may find it first, on another goroutine.
	peerSlots  []atomic.Pointer[valueSlot]
	otherRanks []int // group ranks
}

// newNamedValue publishes a name in this rank's next unused slot. The caller must hold g.Mu.
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
	spin.StoreRelease64(&n.ownSlot.size, uint64(len(name))) // publishes the name
	return n
}

// nameText returns the name, or "" if its size is invalid.
func (s *valueSlot) nameText() string {
	size := spin.LoadAcquire64(&s.size)
	if size > driver.MaxValueName { // a faulty rank may write any value
		return ""
	}

	return string(s.name[:size])
}

func (s *valueSlot) hasName(name string) bool {
	return spin.LoadAcquire64(&s.size) == uint64(len(name)) && string(s.name[:len(name)]) == name
}

var zeroStep uint64 // never changes

// stepWord returns the address of the word in which a peer posts the current step. If the peer has
// not used the name yet, it has no such word. In this case, stepWord returns the address of
// zeroStep, which is less than any step.
func (n *namedValue) stepWord(peer int) *uint64 {
	s := n.peerSlots[peer].Load()
	if s == nil {
		s = n.findSlot(peer)
	}

	if s == nil {
		return &zeroStep
	}

	return &s.lines[n.step&1].step
}

// findSlot searches for a peer's slot, stores it in peerSlots, and returns it. It returns nil if
// the peer has not used the name yet.
func (n *namedValue) findSlot(peer int) *valueSlot {
	b := n.g.blocks[peer]
	for i := range b.values {
		s := &b.values[i]
		isUnused := spin.LoadAcquire64(&s.size) == 0
		if isUnused {
			return nil // the later slots are also unused
		}

		if s.hasName(n.name) {
			n.peerSlots[peer].Store(s)
			return s
		}
	}

	return nil
}

// Gather implements driver.Named. It stores the words of group rank r in all[r].
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

	// Lines alternate. When all ranks have posted step n-1, all have read step n-2, so the line of
	// that step can be overwritten.
	line := unsafe.Pointer(&n.ownSlot.lines[n.step&1])
	spin.PutLine(line, n.step, n.digest, unsafe.Pointer(&ownWords), spin.LinePayload)
	g.wakeSleepers()
	all[g.cfg.Rank] = ownWords
	for _, r := range n.otherRanks {
		hasArrived := g.pollFor(ctx, n.stepWord(r), n.step, g.budget.briefYields)
		if !hasArrived {
			if err := n.waitSlowly(ctx); err != nil {
				return g.fail(err)
			}
		}

		if !n.copyWords(r, &all[r]) {
			wrongStep := spin.LoadAcquire64(n.stepWord(r))
			return g.fail(fmt.Errorf("%s: rank %d has written invalid data for step %d",
				n.callText(), g.cfg.Ranks[r], wrongStep))
		}
	}

	nextLine := unsafe.Pointer(&n.ownSlot.lines[(n.step+1)&1])
	spin.PrefetchWrite(nextLine)
	return nil
}

// copyWords copies the words that a peer has posted in the current step. It returns false if the
// line does not belong to this step and name, or has changed during the copy.
func (n *namedValue) copyWords(peer int, words *driver.Words) bool {
	s := n.peerSlots[peer].Load() // not nil, because the peer has posted the step
	l := &s.lines[n.step&1]
	const wordBytes = 8
	for i := range words {
		word := (*uint64)(unsafe.Pointer(&l.payload[wordBytes*i]))
		words[i] = spin.LoadAcquire64(word)
	}

	return spin.LoadAcquire64(&l.digest) == n.digest && spin.LoadAcquire64(&l.step) == n.step
}

// waitSlowly waits until all other ranks have posted the current step. Meanwhile, this rank's
// status shows the name to the other ranks, for their errors.
func (n *namedValue) waitSlowly(ctx context.Context) error {
	s := &n.g.ownBlock.status
	value := uint64(n.slotNumber) + 1 // see status.value
	spin.StoreRelease64(&s.valueSince, sys.Monotonic())
	spin.StoreRelease64(&s.value, value)
	// Keep the status if a Gather of another name has set it meanwhile.
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
	number := spin.LoadAcquire64(&b.status.value) // 1 plus the slot's number, or 0
	if number == 0 || number > driver.MaxValueNames {
		return ""
	}

	since := spin.LoadAcquire64(&b.status.valueSince)
	waited := time.Duration(sys.Monotonic() - since)
	name := control.Printable(b.values[number-1].nameText())
	return fmt.Sprintf("in %s for %v", driver.ValueText(name), waited.Round(time.Millisecond))
}
