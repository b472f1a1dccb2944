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

// Ranks can gather named values: a few numbers (words) of every rank. Suppose that ranks 0 and 1
// gather the name "loss" for the third time, which is step 3 of this name:
//
//   - Each rank has a block, its part of the shared memory, with slots for names. At its first use
//     of "loss", a rank has written the name to its next unused slot. So the name may be in slot 0
//     of rank 0, but in slot 4 of rank 1.
//   - Each rank posts a line in its slot for "loss": step 3, its words, and a hash of the name.
//   - Each rank searches the slots of the other rank for "loss", and waits until the line there has
//     step 3. Then it copies the words.
//
// A slot has two lines. Steps use them in turn.

var _ driver.Values = (*Group)(nil)

// namedValue implements driver.Named for one name on this rank.
type namedValue struct {
	g          *Group
	name       string
	isOrdered  bool       // whether this rank launches no collective during a Gather
	digest     uint64     // hash of the name
	slotNumber int        // index of ownSlot among the slots of this rank
	ownSlot    *valueSlot // this rank's slot for the name
	step       uint64     // last step that this rank has posted
	// peerSlots holds the slots of other ranks for the name, by group rank. An entry is nil until
	// this rank has found the slot. Another goroutine may find it first, in Group.Inspect.
	peerSlots  []atomic.Pointer[valueSlot]
	otherRanks []int // group ranks
}

// newNamedValue writes a name to this rank's next unused slot. The caller must hold g.Mu.
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
		peerSlots:  make([]atomic.Pointer[valueSlot], len(g.blocks)),
		otherRanks: g.OtherRanks(),
	}
	copy(n.ownSlot.name[:], name)
	// Other ranks read the name only if the size is not 0.
	spin.StoreRelease64(&n.ownSlot.size, uint64(len(name)))
	return n
}

// callText describes the current Gather in errors.
func (n *namedValue) callText() string {
	return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), n.step, n.g.cfg.Name())
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

	// The line still has the words of step n.step-2, which all ranks have read: each of them has
	// posted step n.step-1 after that.
	ownLine := unsafe.Pointer(&n.ownSlot.lines[n.step&1])
	spin.PutLine(ownLine, n.step, n.digest, unsafe.Pointer(&ownWords), spin.LinePayload)
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

// stepWord returns the address at which a peer (another rank) posts the number of the current step.
// If the peer has not used the name yet, it returns the address of zeroStep.
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

// zeroStep stands for the step of a peer without a slot. It never changes. Steps begin with 1.
var zeroStep uint64

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

// hasName reports whether the slot has the given name.
func (s *valueSlot) hasName(name string) bool {
	return spin.LoadAcquire64(&s.size) == uint64(len(name)) && string(s.name[:len(name)]) == name
}

// waitSlowly waits until all other ranks have posted the current step. Meanwhile, this rank's
// status shows the name to the other ranks, for their errors.
func (n *namedValue) waitSlowly(ctx context.Context) error {
	s := &n.g.ownBlock.status
	value := uint64(n.slotNumber) + 1 // describeValue decodes it
	spin.StoreRelease64(&s.valueSince, sys.Monotonic())
	spin.StoreRelease64(&s.value, value)
	// Keep the status if a Gather of another name has set it meanwhile.
	defer atomic.CompareAndSwapUint64(&s.value, value, 0)
	return n.g.waitSlowly(ctx, &slowWait{
		wordOf: n.stepWord, want: n.step, awaited: n.otherRanks,
		callText: n.callText, isOrdered: n.isOrdered,
	})
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

// describeValue describes the Gather in which a rank waits, as in `in value "loss" for 2s`. It
// returns "" if there is none.
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

// nameText returns the name, or "" if its size is invalid.
func (s *valueSlot) nameText() string {
	size := spin.LoadAcquire64(&s.size)
	if size > driver.MaxValueName { // a faulty rank may write any value
		return ""
	}

	return string(s.name[:size])
}
