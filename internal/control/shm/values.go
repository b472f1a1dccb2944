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

// namedValue implements driver.Named.
type namedValue struct {
	g       *Group
	name    string
	ordered bool
	digest  uint64 // of the name; posted with every line
	number  int    // number of this rank's slot
	step    uint64 // last step posted
	me      *valueSlot
	// peers holds the other ranks' slots for this name, by group rank. Each is nil until found.
	peers  []atomic.Pointer[valueSlot]
	others []int
}

func newNamedValue(g *Group, name string, ordered bool) *namedValue {
	digest := fnv.New64a()
	digest.Write([]byte(name))
	n := &namedValue{
		g: g, name: name, ordered: ordered, digest: digest.Sum64(), number: len(g.named),
		me: &g.me.values[len(g.named)], peers: make([]atomic.Pointer[valueSlot], len(g.blocks)),
		others: g.Others(),
	}
	copy(n.me.name[:], name)
	spin.StoreRelease64(&n.me.size, uint64(len(name)))
	return n
}

func (s *valueSlot) text() string {
	size := spin.LoadAcquire64(&s.size)
	if size > driver.MaxValueName {
		return ""
	}
	return string(s.name[:size])
}

func (s *valueSlot) hasName(name string) bool {
	return spin.LoadAcquire64(&s.size) == uint64(len(name)) && string(s.name[:len(name)]) == name
}

var noStep uint64

// word returns the word in which a rank posts the current step, or noStep if the rank has not used
// the name yet.
func (n *namedValue) word(rank int) *uint64 {
	if n.peers[rank].Load() == nil {
		n.find(rank)
	}
	if s := n.peers[rank].Load(); s != nil {
		return &s.lines[n.step&1].step
	}
	return &noStep
}

func (n *namedValue) find(rank int) {
	b := n.g.blocks[rank]
	for i := range b.values {
		switch s := &b.values[i]; {
		case spin.LoadAcquire64(&s.size) == 0:
			return
		case s.hasName(n.name):
			n.peers[rank].Store(s)
			return
		}
	}
}

func (n *namedValue) Gather(ctx context.Context, mine driver.Words, all []driver.Words) error {
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
	line := unsafe.Pointer(&n.me.lines[n.step&1])
	spin.PutLine(line, n.step, n.digest, unsafe.Pointer(&mine), spin.LinePayload)
	g.wakeSleepers()
	all[g.cfg.Rank] = mine
	for _, r := range n.others {
		if !g.pollFor(n.word(r), n.step, g.budget.briefYields) {
			if err := n.waitSlowly(ctx); err != nil {
				return g.fail(err)
			}
		}
		if !n.copyWords(r, &all[r]) {
			return g.fail(fmt.Errorf("%s: rank %d has written an invalid line: step %d",
				n.callText(), g.cfg.Ranks[r], spin.LoadAcquire64(n.word(r))))
		}
	}
	// All ranks have read the line that the next step overwrites.
	spin.PrefetchWrite(unsafe.Pointer(&n.me.lines[(n.step+1)&1]))
	return nil
}

// copyWords copies the words that a rank has posted. It reports whether the line belongs to this
// step and name and did not change during the copy.
func (n *namedValue) copyWords(rank int, words *driver.Words) bool {
	l := &n.peers[rank].Load().lines[n.step&1]
	for i := range words {
		at := (*uint64)(unsafe.Pointer(&l.payload[8*i]))
		words[i] = spin.LoadAcquire64(at)
	}
	return spin.LoadAcquire64(&l.digest) == n.digest && spin.LoadAcquire64(&l.step) == n.step
}

func (n *namedValue) waitSlowly(ctx context.Context) error {
	b, word := &n.g.me.status, uint64(n.number)+1
	spin.StoreRelease64(&b.valueSince, sys.Monotonic())
	spin.StoreRelease64(&b.value, word)
	defer atomic.CompareAndSwapUint64(&b.value, word, 0)
	return n.g.waitSlowly(ctx, &slowWait{
		wordOf: n.word, want: n.step, awaited: n.others, callText: n.callText, ordered: n.ordered,
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
	name := control.Printable(b.values[number-1].text())
	return fmt.Sprintf("in %s for %v", driver.ValueText(name), waited.Round(time.Millisecond))
}
