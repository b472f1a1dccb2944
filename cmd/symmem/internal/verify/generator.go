package verify

import "math/rand/v2"

// generator draws a random sequence of allocations and frees, which is the same on every rank.
// There are only a few sizes. Several segments therefore have free blocks of the same size, between
// which placement has to choose.
type generator struct {
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

// At most churnBlocks blocks of the largest size are live. The largest size is at least
// minChurnElements, because smaller blocks would all fit into one segment.
const (
	churnBlocks      = 12
	minChurnElements = 256 << 10
)

func newGenerator(seed uint64, elements int64) *generator {
	largest := max(elements, minChurnElements)
	return &generator{
		draws: rand.New(rand.NewPCG(seed, 0x636875726e)),
		sizes: []int64{largest / 4, largest / 2, largest},
		limit: churnBlocks * largest,
	}
}

// step draws the next event, which either allocates a block in slot or frees a live block. It
// returns that block.
func (g *generator) step(slot int) (block liveBlock, allocated bool) {
	elements := g.sizes[g.draws.IntN(len(g.sizes))]
	grow := g.draws.IntN(20) < 11 // more often than not, so that memory fills up
	if len(g.live) == 0 || grow && g.total+elements <= g.limit {
		block = liveBlock{slot: slot, elements: elements}
		g.live = append(g.live, block)
		g.total += elements
		return block, true
	}
	return g.release(g.draws.IntN(len(g.live))), false
}

// release removes a block from the list of live blocks.
func (g *generator) release(index int) liveBlock {
	block := g.live[index]
	last := len(g.live) - 1
	g.live[index] = g.live[last]
	g.live = g.live[:last]
	g.total -= block.elements
	return block
}

// pick draws a live block. ok is false if there is none.
func (g *generator) pick() (block liveBlock, ok bool) {
	if len(g.live) == 0 {
		return liveBlock{}, false
	}
	return g.live[g.draws.IntN(len(g.live))], true
}
