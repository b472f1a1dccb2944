package symmem

import (
	"math/bits"
	"slices"

	"symmem/driver"
)

// windowTable is an immutable snapshot of a group's windows. Queries read it without a lock;
// registrations replace it.
//
// For each pool it divides the arena into granules, the unit of segments, and notes the window of
// each one in chunks. A query is two look-ups, however many windows there are, and a registration
// copies the chunks that the segment covers and the list of chunks, but nothing else.
type windowTable struct {
	pools []arenaTable
	count int
}

// arenaTable is the part of one pool.
type arenaTable struct {
	pool   *Pool
	base   uintptr
	bytes  uintptr
	shift  uint8 // log2 of the granule
	chunks []*windowChunk
}

const (
	chunkShift    = 9
	chunkGranules = 1 << chunkShift
)

// windowChunk has the windows of consecutive granules.
type windowChunk [chunkGranules]*windowEntry

// windowEntry is one window of the table.
type windowEntry struct {
	pool    *Pool
	segment *segment
	window  driver.Window
}

// find returns the window that holds a range, if one does.
func (t *windowTable) find(address uintptr, bytes int64) (*windowEntry, bool) {
	for i := range t.pools {
		a := &t.pools[i]
		at := address - a.base
		if at >= a.bytes {
			continue
		}
		granule := at >> a.shift
		if chunk := granule >> chunkShift; chunk < uintptr(len(a.chunks)) && a.chunks[chunk] != nil {
			return a.chunks[chunk][granule%chunkGranules].covers(address, bytes)
		}
		return nil, false
	}
	return nil, false
}

// covers returns the entry if a range that begins in its window ends there, too.
func (p *windowEntry) covers(address uintptr, bytes int64) (*windowEntry, bool) {
	if p == nil {
		return nil, false
	}
	offset := int64(address - uintptr(p.segment.start))
	return p, bytes >= 0 && bytes <= p.segment.bytes-offset
}

// position returns what names an address in the window on every rank.
func (p *windowEntry) position(address uintptr) (pool uint64, segment int32, offset int64) {
	return p.pool.id, p.segment.ordinal, int64(address - uintptr(p.segment.start))
}

// IsSymmetric reports whether memory of this rank lies in one window of the group. It takes no lock
// and asks nobody. Nothing is symmetric in a nil group.
func (g *Group) IsSymmetric(m Memory) bool { return g.holdsWindow(m.Address(), m.Bytes()) }

func (g *Group) holdsWindow(address uintptr, bytes int64) bool {
	if g == nil {
		return false
	}
	_, ok := g.table.Load().find(address, bytes)
	return ok
}

func (g *Group) addWindow(p *Pool, s *segment, w driver.Window) {
	g.setWindow(p, s, &windowEntry{pool: p, segment: s, window: w}, 1)
}

func (g *Group) removeWindow(p *Pool, s *segment) { g.setWindow(p, s, nil, -1) }

// setWindow publishes a table in which a segment's granules have another entry, and makes every
// prepared plan stale.
func (g *Group) setWindow(p *Pool, s *segment, entry *windowEntry, more int) {
	g.state.Lock()
	defer g.state.Unlock()
	old := g.table.Load()
	fresh := &windowTable{pools: slices.Clone(old.pools), count: old.count + more}
	i := slices.IndexFunc(fresh.pools, func(a arenaTable) bool { return a.pool == p })
	if i < 0 {
		i = len(fresh.pools)
		fresh.pools = append(fresh.pools, arenaTable{
			pool: p, base: p.arena.Address(), bytes: uintptr(p.space),
			shift: uint8(bits.TrailingZeros64(uint64(p.rt.device.Info().Granularity))),
		})
	}
	fresh.pools[i].set(s, entry)
	g.table.Store(fresh)
	g.revision.Add(1)
}

// forget drops a pool that is closed: the next arena may lie at the same addresses, and a plan of
// the pool's memory would touch what is no longer mapped.
func (g *Group) forget(p *Pool) {
	g.state.Lock()
	defer g.state.Unlock()
	members := slices.DeleteFunc(slices.Clone(*g.members.Load()), func(m *membership) bool {
		return m.pool == p
	})
	g.members.Store(&members)
	old := g.table.Load()
	g.table.Store(&windowTable{
		pools: slices.DeleteFunc(slices.Clone(old.pools), func(a arenaTable) bool {
			return a.pool == p
		}),
		count: old.count,
	})
	g.revision.Add(1)
}

// set gives the granules of a segment a place. The chunks it changes are copied first.
func (a *arenaTable) set(s *segment, place *windowEntry) {
	first := (uintptr(s.start) - a.base) >> a.shift
	last := first + uintptr(s.bytes-1)>>a.shift
	a.chunks = slices.Clone(a.chunks)
	for uintptr(len(a.chunks)) <= last>>chunkShift {
		a.chunks = append(a.chunks, nil)
	}
	var chunk *windowChunk
	for granule := first; granule <= last; granule++ {
		if at := granule >> chunkShift; chunk == nil || granule%chunkGranules == 0 {
			chunk = &windowChunk{}
			if a.chunks[at] != nil {
				*chunk = *a.chunks[at]
			}
			a.chunks[at] = chunk
		}
		chunk[granule%chunkGranules] = place
	}
}
