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

type namedValue struct {
	g          *Group
	name       string
	isOrdered  bool
	digest     uint64 // hash of the name; posted with every line
	slotNumber int    // in block.values
	step       uint64 // last step posted
	ownSlot    *valueSlot
	// peerSlots holds other ranks' slots for this name, by group rank, or nil until found.
	peerSlots  []atomic.Pointer[valueSlot]
	otherRanks []int // group ranks
}

func newNamedValue(g *Group, name string, isOrdered bool) *namedValue {
	digest := fnv.New64a()
	digest.Write([]byte(name))
	n := &namedValue{
		g: g, name: name, isOrdered: isOrdered, digest: digest.Sum64(), slotNumber: len(g.namedValues),
		ownSlot:    &g.ownBlock.values[len(g.namedValues)],
		peerSlots:  make([]atomic.Pointer[valueSlot], len(g.blocks)),
		otherRanks: g.OtherRanks(),
	}
	copy(n.ownSlot.name[:], name)
	spin.StoreRelease64(&n.ownSlot.size, uint64(len(name)))
	return n
}

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

var zeroStep uint64

// stepWord returns the word in which a rank posts the current step. It is zeroStep until the rank
// has used the name.
func (n *namedValue) stepWord(rank int) *uint64 {
	if n.peerSlots[rank].Load() == nil {
		n.findSlot(rank)
	}
	if s := n.peerSlots[rank].Load(); s != nil {
		return &s.lines[n.step&1].step
	}
	return &zeroStep
}

func (n *namedValue) findSlot(rank int) {
	b := n.g.blocks[rank]
	for i := range b.values {
		switch s := &b.values[i]; {
		case spin.LoadAcquire64(&s.size) == 0:
			return
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
	// All ranks have read the line of the next step.
	spin.PrefetchWrite(unsafe.Pointer(&n.ownSlot.lines[(n.step+1)&1]))
	return nil
}

// copyWords returns false if the line does not belong to this step and name, or changed during the
// copy.
func (n *namedValue) copyWords(rank int, words *driver.Words) bool {
	l := &n.peerSlots[rank].Load().lines[n.step&1]
	for i := range words {
		word := (*uint64)(unsafe.Pointer(&l.payload[8*i]))
		words[i] = spin.LoadAcquire64(word)
	}
	return spin.LoadAcquire64(&l.digest) == n.digest && spin.LoadAcquire64(&l.step) == n.step
}

func (n *namedValue) waitSlowly(ctx context.Context) error {
	s, value := &n.g.ownBlock.status, uint64(n.slotNumber)+1
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

func (b *block) describeValue() string {
	number := spin.LoadAcquire64(&b.status.value)
	if number == 0 || number > driver.MaxValueNames {
		return ""
	}
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&b.status.valueSince))
	name := control.Printable(b.values[number-1].nameText())
	return fmt.Sprintf("in %s for %v", driver.ValueText(name), waited.Round(time.Millisecond))
}
