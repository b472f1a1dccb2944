package alloc

import (
	"cmp"
	"slices"
)

// model implements the behavior of a Core with lists and linear searches. It shares only the sizing
// rules with the Core, which separate tests cover.
type model struct {
	rules      *Core
	segments   []*modelSegment
	streams    []Stream // in the order of their first call
	synced     map[Stream]int
	marked     int
	frees      int      // how many times a block has become free
	requesters []Stream // streams other than 0, in the order of their first request
	deferrals  uint64
	toRecord   []StreamPoint
	waits      []StreamPoint
	returned   []ReturnedBlock
}

type modelSegment struct {
	Segment
	blocks []*modelBlock
}

// modelRegion holds the properties that adjacent blocks share.
type modelRegion struct {
	stream Stream
	small  bool
	high   int64 // high-water mark, an offset
	floor  int64 // end of reserved memory, an offset
}

type modelBlock struct {
	segment   *modelSegment
	region    *modelRegion
	offset    int64
	size      int64
	requested int64
	state     State
	pins      int32
	uses      []modelUse
	deferral  uint64
	handle    Handle // from the Core under test
}

type modelUse struct {
	stream Stream
	mark   int
}

func newModel(rules *Core) *model {
	return &model{rules: rules, streams: []Stream{0}, synced: map[Stream]int{}}
}

func (m *model) begin() { m.toRecord, m.waits, m.returned = nil, nil, nil }

func (m *model) addStream(s Stream) {
	if !slices.Contains(m.streams, s) {
		m.streams = append(m.streams, s)
	}
}

func (m *model) mapped() (n int64) {
	for _, s := range m.segments {
		n += s.Bytes
	}

	return n
}

func (m *model) allBlocks() (all []*modelBlock) {
	for _, s := range m.segments {
		all = append(all, s.blocks...)
	}

	return all
}

// best returns the block that best fit selects, or nil if none fits. It compares all free
// blocks.
func (m *model) best(rounded int64, stream Stream) *modelBlock {
	small := m.rules.config.smallIndexBit(rounded) == 1
	var free []*modelBlock
	for _, b := range m.allBlocks() {
		if b.state == Free && b.region.stream == stream && b.region.small == small &&
			b.size >= rounded {
			free = append(free, b)
		}
	}

	if len(free) == 0 {
		return nil
	}

	return slices.MinFunc(free, m.compare)
}

func (m *model) compare(a, b *modelBlock) int {
	if m.rules.config.Policy == AddressOrder {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(
			a.segment.Address+uint64(a.offset), b.segment.Address+uint64(b.offset)))
	}

	return cmp.Or(cmp.Compare(a.size, b.size),
		cmp.Compare(a.segment.Ordinal, b.segment.Ordinal), cmp.Compare(a.offset, b.offset))
}

// alloc returns a block, or nil and the number of bytes to grow by (0 if memory is exhausted).
func (m *model) alloc(size int64, stream Stream) (*modelBlock, int64) {
	m.begin()
	m.request(stream)
	rounded := roundUp(size, Unit)
	for {
		if b := m.best(rounded, stream); b != nil {
			return m.place(b, size, rounded), 0
		}

		queue := m.deferred(stream)
		if len(queue) == 0 {
			if b := m.takeCleanMemory(rounded, stream); b != nil {
				return m.place(b, size, rounded), 0
			}

			return nil, m.grow(rounded)
		}

		for _, u := range queue[0].uses {
			m.waits = append(m.waits, StreamPoint{queue[0].deferral, u.stream})
		}

		m.returnBlock(queue[0])
	}
}

func (m *model) grow(rounded int64) int64 {
	bytes := m.rules.config.segmentSize(rounded, m.rules.mappedBytes)
	limit := m.rules.config.Capacity
	if left := limit - m.mapped(); limit > 0 && bytes > left {
		bytes = left / m.rules.config.Granularity * m.rules.config.Granularity
		if bytes < rounded || m.rules.config.Sizing == Stepped {
			return 0
		}
	}

	return bytes
}

func (m *model) add(grow Growth, address uint64, stream Stream, small bool, ordinal int32) {
	s := &modelSegment{Segment: Segment{ordinal, grow.Bytes, address, stream}}
	r := &modelRegion{stream: stream, small: small}
	if grow.isReserved {
		r.high, r.floor = grow.Bytes, grow.Bytes
	}

	s.blocks = []*modelBlock{{segment: s, region: r, size: grow.Bytes, state: Free}}
	m.segments = append(m.segments, s)
}

func (m *model) place(b *modelBlock, size, rounded int64) *modelBlock {
	if rest := b.size - rounded; m.rules.config.shouldSplit(rounded, rest) {
		tail := &modelBlock{
			segment: b.segment, region: b.region, offset: b.offset + rounded, size: rest,
			state: Free,
		}
		b.size = rounded
		s := b.segment
		s.blocks = slices.Insert(s.blocks, slices.Index(s.blocks, b)+1, tail)
	}

	b.state, b.requested = Live, size
	b.region.high = max(b.region.high, b.offset+b.size)
	return b
}

func (m *model) free(b *modelBlock) State {
	m.begin()
	if b.pins > 0 {
		b.state = Parked
		return Parked
	}

	return m.release(b)
}

func (m *model) release(b *modelBlock) State {
	b.uses = slices.DeleteFunc(b.uses, func(u modelUse) bool {
		return u.mark <= m.synced[u.stream]
	})
	if len(b.uses) == 0 {
		m.merge(b)
		return Free
	}

	m.deferrals++
	b.deferral, b.state = m.deferrals, Deferred
	for _, u := range b.uses {
		m.toRecord = append(m.toRecord, StreamPoint{b.deferral, u.stream})
	}

	return Deferred
}

func (m *model) use(b *modelBlock, on Stream) {
	m.begin()
	if on == b.region.stream {
		return
	}

	if !m.useAgain(b, on) {
		m.marked++
		b.uses = slices.Insert(b.uses, 0, modelUse{on, m.marked})
	}
}

func (m *model) useAgain(b *modelBlock, on Stream) bool {
	i := slices.IndexFunc(b.uses, func(u modelUse) bool { return u.stream == on })
	if i < 0 {
		return false
	}

	m.marked++
	b.uses[i].mark = m.marked
	return true
}

type modelMark struct {
	uses      int
	deferrals uint64
	frees     int
}

func (m *model) mark() modelMark { return modelMark{m.marked, m.deferrals, m.frees} }

func (m *model) sync(on Stream, before modelMark) {
	m.begin()
	m.synced[on] = max(m.synced[on], before.uses)
	if m.frees == before.frees {
		m.markClean(on)
	}

	for _, owner := range m.streams {
		for _, b := range m.deferred(owner) {
			if b.deferral > before.deferrals {
				continue
			}

			b.uses = slices.DeleteFunc(b.uses, func(u modelUse) bool { return u.stream == on })
			if len(b.uses) == 0 {
				m.returnBlock(b)
			}
		}
	}
}

func (m *model) unpin(b *modelBlock) State {
	m.begin()
	if b.pins--; b.pins > 0 || b.state == Live {
		return b.state
	}

	returned := m.returnedBlock(b)
	state := m.release(b)
	if state == Free {
		m.returned = append(m.returned, returned)
	}

	return state
}

// deferred returns the deferred blocks of a stream, oldest first.
func (m *model) deferred(stream Stream) (queue []*modelBlock) {
	for _, b := range m.allBlocks() {
		if b.state == Deferred && b.region.stream == stream {
			queue = append(queue, b)
		}
	}

	slices.SortFunc(queue, func(a, b *modelBlock) int { return cmp.Compare(a.deferral, b.deferral) })
	return queue
}

func (m *model) returnBlock(b *modelBlock) {
	m.returned = append(m.returned, m.returnedBlock(b))
	m.merge(b)
}

// merge makes a block free and merges it with free neighbors.
func (m *model) merge(b *modelBlock) {
	b.state, b.uses, b.requested, b.handle = Free, nil, 0, 0
	m.frees++
	b.segment.mergeFree()
}

func (s *modelSegment) mergeFree() {
	for i := len(s.blocks) - 1; i > 0; i-- {
		low, b := s.blocks[i-1], s.blocks[i]
		if low.region == b.region && low.state == Free && b.state == Free {
			low.size += b.size
			s.blocks = slices.Delete(s.blocks, i, i+1)
		}
	}
}

func (m *model) trim(keep int64) (gone []Segment) {
	m.begin()
	for i := len(m.segments) - 1; i >= 0; i-- {
		s := m.segments[i]
		whole := !slices.ContainsFunc(s.blocks, func(b *modelBlock) bool { return b.state != Free })
		if whole && m.mapped()-s.Bytes >= keep {
			gone = append(gone, s.Segment)
			m.segments = slices.Delete(m.segments, i, i+1)
		}
	}

	return gone
}

func (b *modelBlock) block() Block {
	return Block{b.segment.Ordinal, b.offset, b.size, b.handle}
}

func (m *model) views() (all []View) {
	for _, b := range m.allBlocks() {
		all = append(all, View{
			Block: b.block(), State: b.state,
			Stream: b.region.stream, Pins: b.pins,
		})
	}

	return all
}
