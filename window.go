package symmem

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
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

// windows holds the windows of a group, its memberships in pools, and their revision.
type windows struct {
	state    *ranked.Mutex[groupState] // serializes writers
	table    atomic.Pointer[windowTable]
	members  atomic.Pointer[[]*membership]
	revision atomic.Uint64 // counts changes that make prepared plans stale
}

func (w *windows) init(state *ranked.Mutex[groupState]) {
	w.state = state
	w.table.Store(&windowTable{})
	w.members.Store(&[]*membership{})
}

// revise makes every prepared plan stale, also one that is being made.
func (w *windows) revise() {
	w.state.Lock()
	defer w.state.Unlock()
	w.revision.Add(1)
}

// memberOf finds the group's part in a pool without a lock.
func (w *windows) memberOf(p *Pool) *membership {
	for _, m := range *w.members.Load() {
		if m.pool == p {
			return m
		}
	}
	return nil
}

func (w *windows) remember(m *membership) {
	w.state.Lock()
	defer w.state.Unlock()
	list := append(slices.Clone(*w.members.Load()), m)
	w.members.Store(&list)
}

// hold reports whether a range lies in one window.
func (w *windows) hold(address uintptr, bytes int64) bool {
	_, ok := w.table.Load().find(address, bytes)
	return ok
}

func (w *windows) add(p *Pool, s *segment, made driver.Window) {
	w.set(p, s, &windowEntry{pool: p, segment: s, window: made}, 1)
}

func (w *windows) remove(p *Pool, s *segment) { w.set(p, s, nil, -1) }

// set publishes a table in which a segment's granules have another entry, and makes every
// prepared plan stale.
func (w *windows) set(p *Pool, s *segment, entry *windowEntry, more int) {
	w.state.Lock()
	defer w.state.Unlock()
	old := w.table.Load()
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
	w.table.Store(fresh)
	w.revision.Add(1)
}

// forget drops a pool that is closed: the next arena may lie at the same addresses, and a plan of
// the pool's memory would touch what is no longer mapped.
func (w *windows) forget(p *Pool) {
	w.state.Lock()
	defer w.state.Unlock()
	members := slices.DeleteFunc(slices.Clone(*w.members.Load()), func(m *membership) bool {
		return m.pool == p
	})
	w.members.Store(&members)
	old := w.table.Load()
	w.table.Store(&windowTable{
		pools: slices.DeleteFunc(slices.Clone(old.pools), func(a arenaTable) bool {
			return a.pool == p
		}),
		count: old.count,
	})
	w.revision.Add(1)
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
