package symmem

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// windowTable is an immutable snapshot of a group's windows, the memory that is registered on all
// ranks. A registration replaces the table, so queries need no lock.
//
// For each pool, the table divides the arena into granules, the unit of segment sizes, and stores
// the window of each granule in chunks. A query therefore takes two lookups, and a registration
// copies only the list of chunks and the chunks that change.
type windowTable struct {
	pools []arenaTable
	count int
}

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

type windowChunk [chunkGranules]*windowEntry

type windowEntry struct {
	pool    *Pool
	segment *segment
	window  driver.Window
}

func (t *windowTable) find(address uintptr, bytes int64) (*windowEntry, bool) {
	for i := range t.pools {
		a := &t.pools[i]
		offset := address - a.base
		if offset >= a.bytes {
			continue
		}
		granule := offset >> a.shift
		if chunk := granule >> chunkShift; chunk < uintptr(len(a.chunks)) && a.chunks[chunk] != nil {
			return a.chunks[chunk][granule%chunkGranules].covers(address, bytes)
		}
		return nil, false
	}
	return nil, false
}

// covers returns e and reports whether its window contains the whole range. The range must begin in
// the window.
func (e *windowEntry) covers(address uintptr, bytes int64) (*windowEntry, bool) {
	if e == nil {
		return nil, false
	}
	offset := int64(address - uintptr(e.segment.start))
	return e, bytes >= 0 && bytes <= e.segment.bytes-offset
}

// position returns the pool, segment and offset of an address. Unlike the address, they are the
// same on every rank.
func (e *windowEntry) position(address uintptr) (pool uint64, segment int32, offset int64) {
	return e.pool.id, e.segment.ordinal, int64(address - uintptr(e.segment.start))
}

type windows struct {
	state    *ranked.Spin[groupState] // serializes writers
	table    atomic.Pointer[windowTable]
	members  atomic.Pointer[[]*membership]
	revision atomic.Uint64 // incremented by every change that makes plans stale
}

func (w *windows) init(state *ranked.Spin[groupState]) {
	w.state = state
	w.table.Store(&windowTable{})
	w.members.Store(&[]*membership{})
}

// makePlansStale makes every plan stale, including plans that are being prepared.
func (w *windows) makePlansStale() {
	w.state.Lock()
	defer w.state.Unlock()
	w.revision.Add(1)
}

// memberOf returns the group's membership in a pool, or nil. It takes no lock.
func (w *windows) memberOf(p *Pool) *membership {
	for _, m := range *w.members.Load() {
		if m.pool == p {
			return m
		}
	}
	return nil
}

func (w *windows) addMember(m *membership) {
	w.state.Lock()
	defer w.state.Unlock()
	list := append(slices.Clone(*w.members.Load()), m)
	w.members.Store(&list)
}

func (w *windows) contains(address uintptr, bytes int64) bool {
	_, ok := w.table.Load().find(address, bytes)
	return ok
}

func (w *windows) add(p *Pool, s *segment, window driver.Window) {
	w.publish(p, s, &windowEntry{pool: p, segment: s, window: window}, 1)
}

func (w *windows) remove(p *Pool, s *segment) { w.publish(p, s, nil, -1) }

// publish stores an entry for all granules of a segment, and makes every plan stale. change is
// added to the number of windows.
func (w *windows) publish(p *Pool, s *segment, entry *windowEntry, change int) {
	w.state.Lock()
	defer w.state.Unlock()
	old := w.table.Load()
	updated := &windowTable{pools: slices.Clone(old.pools), count: old.count + change}
	i := slices.IndexFunc(updated.pools, func(a arenaTable) bool { return a.pool == p })
	if i < 0 {
		i = len(updated.pools)
		updated.pools = append(updated.pools, arenaTable{
			pool: p, base: p.segments.arena.Address(), bytes: uintptr(p.segments.space),
			shift: uint8(bits.TrailingZeros64(uint64(p.rt.device.Info().Granularity))),
		})
	}
	updated.pools[i].setGranules(s, entry)
	w.table.Store(updated)
	w.revision.Add(1)
}

// dropPool removes a closed pool and makes every plan stale, because a stale plan would access
// unmapped memory, or memory of a new arena at the same addresses.
func (w *windows) dropPool(p *Pool) {
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

// setGranules changes copies of the chunks, because other goroutines may be reading the old ones.
func (a *arenaTable) setGranules(s *segment, entry *windowEntry) {
	first := (uintptr(s.start) - a.base) >> a.shift
	last := first + uintptr(s.bytes-1)>>a.shift
	a.chunks = slices.Clone(a.chunks)
	for uintptr(len(a.chunks)) <= last>>chunkShift {
		a.chunks = append(a.chunks, nil)
	}
	var chunk *windowChunk
	for granule := first; granule <= last; granule++ {
		if index := granule >> chunkShift; chunk == nil || granule%chunkGranules == 0 {
			chunk = &windowChunk{}
			if a.chunks[index] != nil {
				*chunk = *a.chunks[index]
			}
			a.chunks[index] = chunk
		}
		chunk[granule%chunkGranules] = entry
	}
}
