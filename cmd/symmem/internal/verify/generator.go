package verify

import "math/rand/v2"

// generator draws allocations and frees, the same on every rank. They have only a few sizes, so
// that the placement has to choose between free blocks.
type generator struct {
	random          *rand.Rand
	sizes           []int64 // in elements
	maxLiveElements int64
	live            []liveBlock
	liveElements    int64 // of all live blocks
}

type liveBlock struct {
	slot     int
	elements int64
}

// At most maxLargestBlocks blocks of the largest size are live. The largest size is at least
// minChurnElements, because smaller blocks would all fit into one segment.
const (
	maxLargestBlocks = 12
	minChurnElements = 256 << 10
)

func newGenerator(seed uint64, elements int64) *generator {
	largest := max(elements, minChurnElements)
	return &generator{
		random:          rand.New(rand.NewPCG(seed, 0x636875726e)),
		sizes:           []int64{largest / 4, largest / 2, largest},
		maxLiveElements: maxLargestBlocks * largest,
	}
}

// step draws the next event, which allocates or frees the returned block.
func (g *generator) step(slot int) (block liveBlock, allocated bool) {
	elements := g.sizes[g.random.IntN(len(g.sizes))]
	shouldAlloc := g.random.IntN(20) < 11 // more often than not, so that memory fills up
	if len(g.live) == 0 || shouldAlloc && g.liveElements+elements <= g.maxLiveElements {
		block = liveBlock{slot: slot, elements: elements}
		g.live = append(g.live, block)
		g.liveElements += elements
		return block, true
	}
	return g.release(g.random.IntN(len(g.live))), false
}

func (g *generator) release(index int) liveBlock {
	block := g.live[index]
	last := len(g.live) - 1
	g.live[index] = g.live[last]
	g.live = g.live[:last]
	g.liveElements -= block.elements
	return block
}

func (g *generator) drawLiveBlock() (block liveBlock, ok bool) {
	if len(g.live) == 0 {
		return liveBlock{}, false
	}
	return g.live[g.random.IntN(len(g.live))], true
}
