package verify

import "math/rand/v2"

// history draws a random sequence of allocations and frees, which is the same on every rank with
// the same seed. There are only a few sizes, and frees are random. As a result, several segments
// have free blocks of the same size, between which placement has to choose.
type history struct {
	draws *rand.Rand
	sizes []int64 // in elements
	limit int64   // maximum number of live elements
	live  []liveBlock
	total int64 // number of live elements
}

type liveBlock struct {
	slot     int
	elements int64
}

// At most churnBlocks blocks of the largest size are live. The largest size is at least churnUnit
// elements, because smaller blocks would fit into a single segment, in which blocks have the same
// order by address as by offset.
const (
	churnBlocks = 12
	churnUnit   = 256 << 10
)

func newHistory(seed uint64, elements int64) *history {
	largest := max(elements, churnUnit)
	return &history{
		draws: rand.New(rand.NewPCG(seed, 0x636875726e)),
		sizes: []int64{largest / 4, largest / 2, largest},
		limit: churnBlocks * largest,
	}
}

// step draws the next event, which either allocates a block in slot or frees a live block. It
// returns that block.
func (h *history) step(slot int) (block liveBlock, allocated bool) {
	elements := h.sizes[h.draws.IntN(len(h.sizes))]
	grow := h.draws.IntN(20) < 11 // more allocations than frees, so that memory fills up
	if len(h.live) == 0 || grow && h.total+elements <= h.limit {
		block = liveBlock{slot: slot, elements: elements}
		h.live = append(h.live, block)
		h.total += elements
		return block, true
	}
	return h.release(h.draws.IntN(len(h.live))), false
}

// release removes a live block from the list. The order of the remaining blocks must be the same
// on all ranks, because it affects later draws.
func (h *history) release(index int) liveBlock {
	block := h.live[index]
	last := len(h.live) - 1
	h.live[index] = h.live[last]
	h.live = h.live[:last]
	h.total -= block.elements
	return block
}

// pick draws a live block. ok is false if there is none.
func (h *history) pick() (block liveBlock, ok bool) {
	if len(h.live) == 0 {
		return liveBlock{}, false
	}
	return h.live[h.draws.IntN(len(h.live))], true
}
