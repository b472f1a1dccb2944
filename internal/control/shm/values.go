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

// namedValue implements driver.Named: in each step, every rank posts a few words (numbers) under a
// name, and receives the words of all ranks. A rank enters the name into its next unused slot in
// shared memory. It posts the words of even and odd steps to different lines of the slot.
type namedValue struct {
	g          *Group
	name       string
	isOrdered  bool       // whether this rank launches no collective during a Gather
	digest     uint64     // hash of the name
	slotNumber int        // index of ownSlot
	ownSlot    *valueSlot // this rank's slot for the name
	step       uint64     // last step posted by this rank
	// peerSlots caches the results of findSlot, by group rank. Group.Inspect may call findSlot
	// concurrently.
	peerSlots  []atomic.Pointer[valueSlot]
	otherRanks []int // group ranks
}

// newNamedValue enters a name into this rank's next unused slot. The caller must hold g.Mu.
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
	spin.StoreRelease64(&n.ownSlot.size, uint64(len(name))) // lets other ranks read the name
	return n
}

func (n *namedValue) callText() string {
	return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), n.step, n.g.cfg.Name())
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

	// The line still holds the words of step n.step-2, which all ranks have read: they have posted
	// step n.step-1 since.
	ownLine := unsafe.Pointer(&n.ownSlot.lines[n.step%2])
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

	nextLine := unsafe.Pointer(&n.ownSlot.lines[(n.step+1)%2])
	spin.PrefetchWrite(nextLine)
	return nil
}

// stepWord returns the address at which another rank, the peer, writes the number of the step that
// it has posted. It returns the address of zeroStep while the peer has no slot for the name.
func (n *namedValue) stepWord(peer int) *uint64 {
	s := n.peerSlots[peer].Load()
	if s == nil {
		s = n.findSlot(peer)
	}

	if s == nil {
		return &zeroStep
	}

	return &s.lines[n.step%2].step
}

// zeroStep is always 0, as if the peer had not posted any step.
var zeroStep uint64

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

// waitSlowly waits for the other ranks' lines. Meanwhile, this rank's status shows the value to
// ranks whose waits fail.
func (n *namedValue) waitSlowly(ctx context.Context) error {
	s := &n.g.ownBlock.status
	value := uint64(n.slotNumber) + 1
	spin.StoreRelease64(&s.valueSince, sys.Monotonic())
	spin.StoreRelease64(&s.value, value)
	// A concurrent Gather of another name may have replaced s.value.
	defer atomic.CompareAndSwapUint64(&s.value, value, 0)
	return n.g.waitSlowly(ctx, &slowWait{
		wordOf: n.stepWord, want: n.step, awaited: n.otherRanks,
		callText: n.callText, isOrdered: n.isOrdered,
	})
}

// copyWords copies a peer's words. It returns false if the line is for another step or name, or
// changes during the copy.
func (n *namedValue) copyWords(peer int, words *driver.Words) bool {
	s := n.peerSlots[peer].Load() // not nil after stepWord has found the step
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
	value := spin.LoadAcquire64(&b.status.value)
	isWaiting := value != 0 && value <= driver.MaxValueNames
	if !isWaiting {
		return ""
	}

	since := spin.LoadAcquire64(&b.status.valueSince)
	waited := time.Duration(sys.Monotonic() - since)
	slotNumber := value - 1
	name := control.Printable(b.values[slotNumber].nameText())
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
