package verify

import "math/rand/v2"

// generator draws allocations and frees, the same on every rank. They have only a few sizes, so
// that the placement has to choose between free blocks.
type generator struct {
	random          *rand.Rand
	sizes           []int64         // in elements
	maxLiveElements int64           // maximum of liveElements
	live            []plannedBuffer // buffers that were allocated and not freed yet
	liveElements    int64           // of all live buffers
}

// plannedBuffer is a buffer of a program.
type plannedBuffer struct {
	slot     int // number of the buffer in the program
	elements int64
}

// At most maxLargestBuffers buffers of the largest size are live. The largest size is at least
// minChurnElements, because smaller buffers would all fit into one segment.
const (
	maxLargestBuffers = 12
	minChurnElements  = 256 << 10
)

// newGenerator returns a generator for cases with this number of elements.
func newGenerator(seed uint64, elements int64) *generator {
	largest := max(elements, minChurnElements)
	const churnStream = 0x636875726e // "churn": other random numbers than those of other uses of seed
	return &generator{
		random:          rand.New(rand.NewPCG(seed, churnStream)),
		sizes:           []int64{largest / 4, largest / 2, largest},
		maxLiveElements: maxLargestBuffers * largest,
	}
}

// step draws the next event and returns its buffer. If isAlloc is true, the event allocates the
// buffer, whose slot is the given one. Otherwise, the event frees the buffer.
func (g *generator) step(slot int) (buffer plannedBuffer, isAlloc bool) {
	elements := g.sizes[g.random.IntN(len(g.sizes))]
	shouldAlloc := g.random.IntN(20) < 11 // more often than not, so that memory fills up
	hasSpace := g.liveElements+elements <= g.maxLiveElements
	if len(g.live) == 0 || (shouldAlloc && hasSpace) {
		buffer = plannedBuffer{slot: slot, elements: elements}
		g.live = append(g.live, buffer)
		g.liveElements += elements
		return buffer, true
	}

	index := g.random.IntN(len(g.live))
	return g.release(index), false
}

// release removes the live buffer at an index, and returns it. The last buffer takes its place.
func (g *generator) release(index int) plannedBuffer {
	buffer := g.live[index]
	last := len(g.live) - 1
	g.live[index] = g.live[last]
	g.live = g.live[:last]
	g.liveElements -= buffer.elements
	return buffer
}

// drawLive draws one of the live buffers. It returns false if there are none.
func (g *generator) drawLive() (buffer plannedBuffer, ok bool) {
	if len(g.live) == 0 {
		return plannedBuffer{}, false
	}

	index := g.random.IntN(len(g.live))
	return g.live[index], true
}
