package verify

import "math/rand/v2"

// history draws a random sequence of allocations and frees. Sizes come from a small set and frees
// are random, so that equally large free blocks lie in several segments: these are the ties that a
// placement has to break.
//
// It does no I/O: two histories with the same seed are the same on every rank.
type history struct {
	draws *rand.Rand
	sizes []int64 // in elements
	most  int64   // maximum number of live elements
	live  []holding
	total int64 // number of live elements
}

// holding represents a live block of a history.
type holding struct {
	slot     int
	elements int64
}

// The extent of a history: the maximum number of its largest blocks that may be live at once, and
// the minimum size of these blocks in elements. Small cases use churn of this size, too. Otherwise
// it would fit into one segment, in which addresses and offsets have the same order.
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

// step draws the next event. It is either the allocation of a block in the given slot, or the free
// of a live block, which is returned.
func (h *history) step(slot int) (block holding, allocated bool) {
	elements := h.sizes[h.draws.IntN(len(h.sizes))]
	grow := h.draws.IntN(20) < 11 // Slightly more allocations than frees fill the memory.
	if len(h.live) == 0 || grow && h.total+elements <= h.most {
		block = holding{slot: slot, elements: elements}
		h.live = append(h.live, block)
		h.total += elements
		return block, true
	}
	return h.release(h.draws.IntN(len(h.live))), false
}

// release removes a block from the live ones. Their order affects later draws, and must be the
// same on all ranks.
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
