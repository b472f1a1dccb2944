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

// History generates the events of a pool: consecutive blocks of 512 B to 1 MiB, a new segment when
// the last one is full, and frees of random live blocks. The same arguments give the same events.
func History(events int, seed uint64) []event.Event {
	h := generator{random: rand.New(rand.NewPCG(seed, 0)), segment: -1, used: segmentBytes}
	for len(h.events) < events {
		h.step()
	}
	return h.events
}

// generator generates the events of a pool.
type generator struct {
	random  *rand.Rand
	events  []event.Event
	live    []event.Event
	segment int32
	used    int64 // bytes allocated in the last segment
}

func (h *generator) step() {
	if n := len(h.live); n > 0 && (n >= liveBlocks || h.random.IntN(3) == 0) {
		h.free(h.random.IntN(n))
		return
	}
	requested := 1 + h.random.Int64N(1<<20)
	size := (requested + grain - 1) / grain * grain
	if h.used+size > segmentBytes {
		h.segment, h.used = h.segment+1, 0
		h.events = append(h.events, event.Event{
			Kind: event.KindSegment, Segment: h.segment,
			Size: segmentBytes, Requested: segmentBytes,
		})
		return
	}
	e := event.Event{
		Kind: event.KindAlloc, Stream: uint32(h.random.IntN(2)), Segment: h.segment,
		Offset: h.used, Size: size, Requested: requested,
	}
	h.used += size
	h.live = append(h.live, e)
	h.events = append(h.events, e)
}

func (h *generator) free(i int) {
	e := h.live[i]
	last := len(h.live) - 1
	h.live[i] = h.live[last]
	h.live = h.live[:last]
	e.Kind = event.KindFree
	h.events = append(h.events, e)
}
