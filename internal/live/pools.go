package live

import (
	"fmt"

	"symmem/event"
	"symmem/internal/page"
)

// poolKey identifies a pool across ranks. If the pool has no domain, the key includes the rank,
// because each rank numbers such pools separately.
type poolKey struct {
	domain string
	id     uint64
	rank   int // -1 if the pool has a domain
}

type member struct {
	rank int // index in Machine.Ranks
	*Pool
}

// end returns the position after the latest event in the pool's history.
func (m member) end() uint64 { return m.First + uint64(len(m.Recent)) }

func (m member) at(position uint64) Placement { return m.Recent[position-m.First] }

func (r *reporter) pools() {
	var order []poolKey
	members := map[poolKey][]member{}
	for i := range r.machine.Ranks {
		s := &r.machine.Ranks[i]
		for j := range s.Pools {
			p := &s.Pools[j]
			key := poolKey{p.Domain, p.ID, -1}
			if p.Domain == "" {
				key.rank = i
			}
			if members[key] == nil {
				order = append(order, key)
			}
			members[key] = append(members[key], member{i, p})
		}
	}
	for _, key := range order {
		title := fmt.Sprintf("pool %d of group %s", key.id, key.domain)
		if key.rank >= 0 {
			title = fmt.Sprintf("pool %d of rank %d alone", key.id, r.page.Ranks[key.rank].Rank)
		}
		r.pool(title, members[key])
	}
}

func (r *reporter) pool(title string, members []member) {
	s := page.Sequence{Title: title, Notes: []string{}, Differences: []page.Difference{}}
	begin := uint64(0)
	for _, m := range members {
		if m.Busy {
			s.Notes = append(s.Notes, fmt.Sprintf("rank %d: in use by a call that waits",
				r.page.Ranks[m.rank].Rank))
		}
		begin = max(begin, m.First)
		for _, w := range m.Registered {
			r.window(title, m.rank, w)
		}
	}
	for _, m := range members {
		s.Tracks = append(s.Tracks, newTrack(m, begin))
	}
	if len(members) > 1 {
		r.page.Compared = true
		r.compare(&s, members, begin)
	}
	r.page.Sequences = append(r.page.Sequences, s)
}

func (r *reporter) window(pool string, rank int, w Window) {
	for i := range r.page.Windows {
		row := &r.page.Windows[i]
		if row.Group == w.Group && row.Pool == pool && row.Segment == int(w.Segment) {
			row.States[rank] = page.Registered
			return
		}
	}
	states := make([]page.State, len(r.machine.Ranks))
	states[rank] = page.Registered
	r.page.Windows = append(r.page.Windows, page.Window{
		Group: w.Group, Pool: pool, Segment: int(w.Segment), Bytes: w.Bytes, States: states,
	})
}

// compare finds the first event that differs between the ranks. It compares only the events that
// are available from all ranks, which begin at position begin.
func (r *reporter) compare(s *page.Sequence, members []member, begin uint64) {
	end := members[0].end()
	for _, m := range members {
		end = min(end, m.end())
	}
	for position := begin; position < end; position++ {
		first := members[0].at(position)
		for _, m := range members[1:] {
			if m.at(position) != first {
				r.page.Agree = false
				s.Differences = append(s.Differences, r.difference(members, position, s.Equal))
				return
			}
		}
		if k := kinds[event.Kind(first[0])]; k == page.Alloc || k == page.Free {
			s.Equal++
		}
	}
}

func (r *reporter) difference(members []member, position uint64, request int) page.Difference {
	d := page.Difference{Subject: "requests", Request: request, Blamed: []int{}}
	variants := map[Placement]int{}
	for _, m := range members {
		e := m.at(position)
		at, ok := variants[e]
		if !ok {
			at = len(d.Variants)
			variants[e] = at
			d.Variants = append(d.Variants, page.Variant{Text: e.text(), Stack: []string{}})
		}
		d.Variants[at].Ranks = append(d.Variants[at].Ranks, r.page.Ranks[m.rank].Rank)
	}
	first := members[0].at(position)
	for _, m := range members {
		if kind := first.diffKind(m.at(position)); kind != "" {
			d.Kind = kind
		}
	}
	if d.Kind == "other place" {
		d.Subject = "places"
	}
	for _, v := range d.Variants {
		if 2*len(v.Ranks) < len(members) && len(d.Variants) == 2 {
			d.Blamed = v.Ranks
		}
	}
	return d
}

// diffKind names the property in which two events differ, or returns "" if they are the same.
func (p Placement) diffKind(o Placement) string {
	switch {
	case p == o:
		return ""
	case p[0] != o[0]:
		return "other call"
	case p[1] != o[1]:
		return "other stream"
	case p[5] != o[5]:
		return "other size"
	case event.Kind(p[0]) == event.KindAlloc:
		return "other place"
	}
	return "other call"
}

func (p Placement) text() string {
	e := event.Event{
		Kind: event.Kind(p[0]), Stream: uint32(p[1]), Segment: int32(p[2]), Offset: p[3], Size: p[4],
		Requested: p[5],
	}
	return e.String()
}

var kinds = map[event.Kind]page.Kind{
	event.KindAlloc: page.Alloc, event.KindFree: page.Free, event.KindPark: page.Free,
	event.KindDefer: page.Free, event.KindReturn: page.FreeDone,
	event.KindSegment: page.SegmentAdd, event.KindTrim: page.SegmentRemove,
}

// spot is the location of a block: its segment and offset.
type spot struct{ segment, offset int64 }

type trackBuilder struct {
	track    *page.Track
	segments map[int64]int32 // index in track.Segments, by ordinal
	blocks   map[spot]int32  // number of the live block at a spot
	count    int32           // number of blocks so far
}

// newTrack returns the track of a pool on one rank. Request 0 of the track is the first one at or
// after position begin.
func newTrack(m member, begin uint64) *page.Track {
	b := &trackBuilder{
		track: &page.Track{Rank: m.rank}, segments: map[int64]int32{}, blocks: map[spot]int32{},
	}
	b.older(m.Recent)
	for i, e := range m.Recent {
		kind := kinds[event.Kind(e[0])]
		if kind == 0 {
			continue
		}
		position := m.First + uint64(i)
		if position < begin && (kind == page.Alloc || kind == page.Free) {
			b.track.First--
		}
		b.add(kind, e, int64(position))
	}
	for _, w := range m.Registered {
		if at, ok := b.segments[int64(w.Segment)]; ok {
			b.track.Segments[at].Bytes = max(b.track.Segments[at].Bytes, w.Bytes)
		}
	}
	return b.track
}

// older adds the blocks that are freed in the track but were allocated before it begins.
func (b *trackBuilder) older(events []Placement) {
	allocated := map[spot]bool{}
	for _, e := range events {
		at := spot{e[2], e[3]}
		switch kind := kinds[event.Kind(e[0])]; {
		case kind == page.Alloc:
			allocated[at] = true
		case kind == page.Free && !allocated[at]:
			allocated[at] = true // a later free at this spot frees a newer block
			b.track.Add(&page.Event{
				Kind: page.Older, Size: e[4], Offset: e[3], Segment: b.segment(e, true), Block: -1, Stack: -1,
			})
		}
	}
}

// segment returns the index of an event's segment in the track, or -1 if the event has none. If the
// segment was mapped before the track begins, its size is unknown, so the size is set to the
// smallest that fits all blocks seen in the segment.
func (b *trackBuilder) segment(e Placement, old bool) int32 {
	if e[2] < 0 {
		return -1
	}
	at, ok := b.segments[e[2]]
	if !ok {
		at = int32(len(b.track.Segments))
		b.segments[e[2]] = at
		b.track.Segments = append(b.track.Segments, page.Segment{Initial: old})
	}
	end := e[4]
	if kind := event.Kind(e[0]); kind != event.KindSegment && kind != event.KindTrim {
		end += e[3]
	}
	b.track.Segments[at].Bytes = max(b.track.Segments[at].Bytes, end)
	return at
}

func (b *trackBuilder) add(kind page.Kind, e Placement, number int64) {
	p := page.Event{
		Kind: kind, Size: e[5], Bytes: e[4], Offset: e[3], Stream: int32(e[1]), Block: -1, Stack: -1,
		Number: number, Segment: b.segment(e, event.Kind(e[0]) != event.KindSegment),
	}
	at := spot{e[2], e[3]}
	switch kind {
	case page.Alloc:
		p.Block = b.count
		b.blocks[at] = b.count
		b.count++
	case page.Free, page.FreeDone:
		p.Size = e[4]
		if n, ok := b.blocks[at]; ok {
			p.Block = n
		}
		if kind == page.FreeDone || event.Kind(e[0]) == event.KindFree {
			delete(b.blocks, at)
		}
	default:
		p.Size = e[4]
	}
	b.track.Add(&p)
}
