package live

import (
	"fmt"

	"symmem/event"
	"symmem/internal/page"
)

// poolKey identifies a pool. A pool without a domain is used by one rank only.
type poolKey struct {
	domain string
	id     uint64
	rank   int // index in Machine.Ranks; -1 if the pool has a domain
}

type rankPool struct {
	rank int // index in Machine.Ranks
	*Pool
}

// endPosition returns the position after the latest event in the pool's history.
func (p rankPool) endPosition() uint64 { return p.First + uint64(len(p.Recent)) }

func (p rankPool) eventAt(position uint64) Placement { return p.Recent[position-p.First] }

func (pb *pageBuilder) addPools() {
	var order []poolKey
	pools := map[poolKey][]rankPool{}
	for i := range pb.machine.Ranks {
		s := &pb.machine.Ranks[i]
		for j := range s.Pools {
			p := &s.Pools[j]
			key := poolKey{p.Domain, p.ID, -1}
			if p.Domain == "" {
				key.rank = i
			}

			if pools[key] == nil {
				order = append(order, key)
			}

			pools[key] = append(pools[key], rankPool{i, p})
		}
	}

	for _, key := range order {
		title := fmt.Sprintf("pool %d of group %s", key.id, key.domain)
		if key.rank >= 0 {
			title = fmt.Sprintf("pool %d, used only by rank %d", key.id, pb.page.Ranks[key.rank].Rank)
		}

		pb.addPool(title, pools[key])
	}
}

func (pb *pageBuilder) addPool(title string, pools []rankPool) {
	s := page.Sequence{Title: title, Notes: []string{}, Differences: []page.Difference{}}
	begin := uint64(0)
	for _, p := range pools {
		if p.Busy {
			s.Notes = append(s.Notes, fmt.Sprintf("rank %d: a waiting call is using the pool",
				pb.page.Ranks[p.rank].Rank))
		}

		begin = max(begin, p.First)
		for _, w := range p.Registered {
			pb.addWindow(title, p.rank, w)
		}
	}

	for _, p := range pools {
		s.Tracks = append(s.Tracks, newTrack(p, begin))
	}

	if len(pools) > 1 {
		pb.page.Compared = true
		pb.findDifference(&s, pools, begin)
	}

	pb.page.Sequences = append(pb.page.Sequences, s)
}

func (pb *pageBuilder) addWindow(pool string, rank int, w Window) {
	for i := range pb.page.Windows {
		row := &pb.page.Windows[i]
		if row.Group == w.Group && row.Pool == pool && row.Segment == int(w.Segment) {
			row.States[rank] = page.Registered
			return
		}
	}

	states := make([]page.State, len(pb.machine.Ranks))
	states[rank] = page.Registered
	pb.page.Windows = append(pb.page.Windows, page.Window{
		Group: w.Group, Pool: pool, Segment: int(w.Segment), Bytes: w.Bytes, States: states,
	})
}

// findDifference finds the first event at or after position begin that differs between the ranks.
// It compares the events that all ranks have.
func (pb *pageBuilder) findDifference(s *page.Sequence, pools []rankPool, begin uint64) {
	end := pools[0].endPosition()
	for _, p := range pools {
		end = min(end, p.endPosition())
	}

	for position := begin; position < end; position++ {
		first := pools[0].eventAt(position)
		for _, p := range pools[1:] {
			if p.eventAt(position) != first {
				pb.page.Agree = false
				s.Differences = append(s.Differences, pb.describeDifference(pools, position, s.Equal))
				return
			}
		}

		if k := first.pageKind(); k == page.Alloc || k == page.Free {
			s.Equal++
		}
	}
}

func (pb *pageBuilder) describeDifference(
	pools []rankPool, position uint64, request int,
) page.Difference {
	d := page.Difference{Subject: "requests", Request: request, Blamed: []int{}}
	variantIndex := map[Placement]int{}
	for _, p := range pools {
		e := p.eventAt(position)
		i, isKnown := variantIndex[e]
		if !isKnown {
			i = len(d.Variants)
			variantIndex[e] = i
			d.Variants = append(d.Variants, page.Variant{Text: e.text(), Stack: []string{}})
		}

		d.Variants[i].Ranks = append(d.Variants[i].Ranks, pb.page.Ranks[p.rank].Rank)
	}

	first := pools[0].eventAt(position)
	for _, p := range pools {
		if kind := differenceKind(first, p.eventAt(position)); kind != "" {
			d.Kind = kind
		}
	}

	if d.Kind == "different place" {
		d.Subject = "places"
	}

	for _, v := range d.Variants {
		if 2*len(v.Ranks) < len(pools) && len(d.Variants) == 2 {
			d.Blamed = v.Ranks
		}
	}

	return d
}

func differenceKind(a, b Placement) string {
	switch {
	case a == b:
		return ""
	case a[placementKind] != b[placementKind]:
		return "different call"
	case a[placementStream] != b[placementStream]:
		return "different stream"
	case a[placementRequested] != b[placementRequested]:
		return "different size"
	case a.kind() == event.KindAlloc:
		return "different place"
	}

	return "different call"
}

func (p Placement) kind() event.Kind { return event.Kind(p[placementKind]) }

// pageKind returns the kind of the event on the page, or 0 if the page omits it.
func (p Placement) pageKind() page.Kind { return pageKinds[p.kind()] }

func (p Placement) place() place { return place{p[placementSegment], p[placementOffset]} }

func (p Placement) text() string {
	e := event.Event{
		Kind: p.kind(), Stream: uint32(p[placementStream]), Segment: int32(p[placementSegment]),
		Offset: p[placementOffset], Size: p[placementSize], Requested: p[placementRequested],
	}
	return e.String()
}

var pageKinds = map[event.Kind]page.Kind{
	event.KindAlloc: page.Alloc, event.KindFree: page.Free, event.KindPark: page.Free,
	event.KindDefer: page.Free, event.KindReturn: page.FreeDone,
	event.KindSegment: page.SegmentAdd, event.KindTrim: page.SegmentRemove,
}

type place struct{ segment, offset int64 }

type trackBuilder struct {
	track      *page.Track
	segments   map[int64]int32 // index in track.Segments, by segment number
	blocks     map[place]int32 // number of the live block, by place
	blockCount int32
}

// newTrack returns the track of a pool on one rank. Request 0 is the first one at or after position
// begin.
func newTrack(p rankPool, begin uint64) *page.Track {
	b := &trackBuilder{
		track: &page.Track{Rank: p.rank}, segments: map[int64]int32{}, blocks: map[place]int32{},
	}
	b.addOlderBlocks(p.Recent)
	for i, e := range p.Recent {
		kind := e.pageKind()
		if kind == 0 {
			continue
		}

		position := p.First + uint64(i)
		if position < begin && (kind == page.Alloc || kind == page.Free) {
			b.track.First--
		}

		b.add(kind, e, int64(position))
	}

	for _, w := range p.Registered {
		if index, ok := b.segments[int64(w.Segment)]; ok {
			b.track.Segments[index].Bytes = max(b.track.Segments[index].Bytes, w.Bytes)
		}
	}

	return b.track
}

// addOlderBlocks adds the blocks that were allocated before the track begins and freed later.
func (b *trackBuilder) addOlderBlocks(events []Placement) {
	allocated := map[place]bool{}
	for _, e := range events {
		at := e.place()
		switch kind := e.pageKind(); {
		case kind == page.Alloc:
			allocated[at] = true
		case kind == page.Free && !allocated[at]:
			allocated[at] = true // a later free at this place frees a newer block
			b.track.Add(&page.Event{
				Kind: page.Older, Size: e[placementSize], Offset: e[placementOffset],
				Segment: b.segmentIndex(e, true), Block: -1, Stack: -1,
			})
		}
	}
}

// segmentIndex returns the index of an event's segment in the track, or -1. If isInitial is set,
// the segment may be older than the track. Its size is then unknown, so segmentIndex extends it to
// the end of its last block.
func (b *trackBuilder) segmentIndex(e Placement, isInitial bool) int32 {
	number := e[placementSegment]
	if number < 0 {
		return -1
	}

	index, ok := b.segments[number]
	if !ok {
		index = int32(len(b.track.Segments))
		b.segments[number] = index
		b.track.Segments = append(b.track.Segments, page.Segment{Initial: isInitial})
	}

	end := e[placementSize]
	if e.kind() != event.KindSegment && e.kind() != event.KindTrim {
		end += e[placementOffset]
	}

	b.track.Segments[index].Bytes = max(b.track.Segments[index].Bytes, end)
	return index
}

func (b *trackBuilder) add(kind page.Kind, e Placement, number int64) {
	p := page.Event{
		Kind: kind, Size: e[placementRequested], Bytes: e[placementSize], Offset: e[placementOffset],
		Stream: int32(e[placementStream]), Block: -1, Stack: -1, Number: number,
		Segment: b.segmentIndex(e, e.kind() != event.KindSegment),
	}
	at := e.place()
	switch kind {
	case page.Alloc:
		p.Block = b.blockCount
		b.blocks[at] = b.blockCount
		b.blockCount++
	case page.Free, page.FreeDone:
		p.Size = e[placementSize]
		if n, ok := b.blocks[at]; ok {
			p.Block = n
		}

		if kind == page.FreeDone || e.kind() == event.KindFree {
			delete(b.blocks, at)
		}
	default:
		p.Size = e[placementSize]
	}

	b.track.Add(&p)
}
