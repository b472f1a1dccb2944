package verify

import "math/rand/v2"

// history draws a random sequence of allocations and frees. Sizes come from a small set and frees
// strike anywhere, so that equally large free blocks lie in several segments: the ties that a
// placement has to break.
//
// It is pure: two histories with one seed are the same on every rank.
type history struct {
	draws *rand.Rand
	sizes []int64 // in elements
	most  int64   // elements that may be live at once
	live  []holding
	total int64 // elements that are live
}

// holding is a live block of a history.
type holding struct {
	slot     int
	elements int64
}

// The extent of a history: how many of its largest blocks may be live at once, and the least size
// of those in elements. Small cases have churn of this size, too: it would fit into one segment
// otherwise, in which addresses and offsets have the same order.
const (
	churnBlocks = 12
	churnUnit   = 256 << 10
)

func newHistory(seed uint64, elements int64) *history {
	largest := max(elements, churnUnit)
	return &history{
		draws: rand.New(rand.NewPCG(seed, 0x636875726e)),
		sizes: []int64{largest / 4, largest / 2, largest},
		most:  churnBlocks * largest,
	}
}

// step draws the next event: the allocation of a block under the given slot, or else the free of a
// live one, which is returned.
func (h *history) step(slot int) (block holding, allocated bool) {
	elements := h.sizes[h.draws.IntN(len(h.sizes))]
	grow := h.draws.IntN(20) < 11 // Slightly more allocations than frees fill the memory up.
	if len(h.live) == 0 || grow && h.total+elements <= h.most {
		block = holding{slot: slot, elements: elements}
		h.live = append(h.live, block)
		h.total += elements
		return block, true
	}
	return h.release(h.draws.IntN(len(h.live))), false
}

// release takes a block out of the live ones. Order among them matters for later draws, and is the
// same everywhere.
func (h *history) release(at int) holding {
	block := h.live[at]
	last := len(h.live) - 1
	h.live[at] = h.live[last]
	h.live = h.live[:last]
	h.total -= block.elements
	return block
}

// pick draws one of the live blocks.
func (h *history) pick() (holding, bool) {
	if len(h.live) == 0 {
		return holding{}, false
	}
	return h.live[h.draws.IntN(len(h.live))], true
}
