package sim

import (
	"math/rand/v2"

	"symmem/event"
)

const (
	// segmentBytes is the size of segments in a generated history.
	segmentBytes = 64 << 20
	// grain is the granularity of sizes.
	grain = 512
	// liveBlocks is the maximum number of live blocks in a generated history.
	liveBlocks = 200
)

// History generates the events of a pool. The pool allocates consecutive blocks of 512 B to 1
// MiB, starts a new segment when the last segment is full, and frees random live blocks. The
// same arguments yield the same events.
func History(events int, seed uint64) []event.Event {
	h := generator{random: rand.New(rand.NewPCG(seed, 0)), segment: -1, used: segmentBytes}
	for len(h.events) < events {
		h.step()
	}

	return h.events
}

type generator struct {
	random  *rand.Rand
	events  []event.Event
	live    []event.Event
	segment int32
	used    int64 // bytes allocated in the last segment
}

func (g *generator) step() {
	if n := len(g.live); n > 0 && (n >= liveBlocks || g.random.IntN(3) == 0) {
		g.free(g.random.IntN(n))
		return
	}

	requested := 1 + g.random.Int64N(1<<20)
	size := (requested + grain - 1) / grain * grain
	if g.used+size > segmentBytes {
		g.segment, g.used = g.segment+1, 0
		g.events = append(g.events, event.Event{
			Kind: event.KindSegment, Segment: g.segment,
			Size: segmentBytes, Requested: segmentBytes,
		})
		return
	}

	e := event.Event{
		Kind: event.KindAlloc, Stream: uint32(g.random.IntN(2)), Segment: g.segment,
		Offset: g.used, Size: size, Requested: requested,
	}
	g.used += size
	g.live = append(g.live, e)
	g.events = append(g.events, e)
}

func (g *generator) free(i int) {
	e := g.live[i]
	last := len(g.live) - 1
	g.live[i] = g.live[last]
	g.live = g.live[:last]
	e.Kind = event.KindFree
	g.events = append(g.events, e)
}
