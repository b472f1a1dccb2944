package symmem

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// windowTable lists a group's windows (segments that all ranks have registered). The table is
// immutable: a registration replaces it, so that findWindow needs no lock.
type windowTable struct {
	arenas []arenaTable
	count  int // number of windows
}

// arenaTable maps each granule (the unit of segment sizes) of a pool's address range to a window.
// The map is split into chunks, so that a registration copies only a few of them.
type arenaTable struct {
	pool         *Pool
	base         uintptr
	bytes        uintptr
	granuleShift uint8 // log2 of a granule's bytes
	chunks       []*windowChunk
}

const (
	chunkShift    = 9 // log2 of chunkGranules
	chunkGranules = 1 << chunkShift
)

// windowChunk has nil for each granule that lies in no window.
type windowChunk [chunkGranules]*windowEntry

type windowEntry struct {
	pool    *Pool
	segment *segment
	window  driver.Window
}

// findWindow returns the window in which an address range begins, or nil, and reports whether the
// whole range lies in that window.
func (t *windowTable) findWindow(address uintptr, bytes int64) (*windowEntry, bool) {
	for i := range t.arenas {
		arena := &t.arenas[i]
		offset := address - arena.base // wraps around if the address is below base
		if offset >= arena.bytes {
			continue
		}
		granule := offset >> arena.granuleShift
		chunk := granule >> chunkShift
		if chunk < uintptr(len(arena.chunks)) && arena.chunks[chunk] != nil {
			entry := arena.chunks[chunk][granule%chunkGranules]
			return entry, entry.contains(address, bytes)
		}
		return nil, false
	}
	return nil, false
}

// contains reports whether a range that begins in the window also ends there. For a nil entry, it
// returns false.
func (e *windowEntry) contains(address uintptr, bytes int64) bool {
	if e == nil {
		return false
	}
	offset := int64(address - uintptr(e.segment.start))
	return bytes >= 0 && bytes <= e.segment.bytes-offset
}

// locate describes an address in the window by values that, unlike the address, are the same on
// every rank.
func (e *windowEntry) locate(address uintptr) (pool uint64, segment int32, offset int64) {
	return e.pool.id, e.segment.ordinal, int64(address - uintptr(e.segment.start))
}

// windows holds a group's windows and its memberships in pools.
type windows struct {
	mu          *ranked.Spin[groupState] // held to change the fields below
	table       atomic.Pointer[windowTable]
	memberships atomic.Pointer[[]*membership]
	// revision is incremented to make all of the group's plans (prepared calls) stale.
	revision atomic.Uint64
}

func (w *windows) init(state *ranked.Spin[groupState]) {
	w.mu = state
	w.table.Store(&windowTable{})
	w.memberships.Store(&[]*membership{})
}

// makePlansStale makes the group prepare all calls anew. That includes plans that another
// goroutine is just preparing.
func (w *windows) makePlansStale() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision.Add(1)
}

// membershipOf returns the group's membership in a pool, or nil. It takes no lock.
func (w *windows) membershipOf(p *Pool) *membership {
	for _, m := range *w.memberships.Load() {
		if m.pool == p {
			return m
		}
	}
	return nil
}

func (w *windows) addMembership(m *membership) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := append(slices.Clone(*w.memberships.Load()), m)
	w.memberships.Store(&list)
}

// contains reports whether a range lies in one of the windows.
func (w *windows) contains(address uintptr, bytes int64) bool {
	_, isInWindow := w.table.Load().findWindow(address, bytes)
	return isInWindow
}

func (w *windows) add(p *Pool, s *segment, window driver.Window) {
	w.setWindow(p, s, &windowEntry{pool: p, segment: s, window: window}, 1)
}

func (w *windows) remove(p *Pool, s *segment) { w.setWindow(p, s, nil, -1) }

// setWindow stores an entry, or nil, for all granules of a segment, and adds countChange to the
// number of windows.
func (w *windows) setWindow(p *Pool, s *segment, entry *windowEntry, countChange int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldTable := w.table.Load()
	newTable := &windowTable{
		arenas: slices.Clone(oldTable.arenas), count: oldTable.count + countChange,
	}
	arenaIndex := slices.IndexFunc(newTable.arenas, func(a arenaTable) bool { return a.pool == p })
	if arenaIndex < 0 {
		arenaIndex = len(newTable.arenas)
		newTable.arenas = append(newTable.arenas, arenaTable{
			pool: p, base: p.segments.arena.Address(), bytes: uintptr(p.segments.arenaBytes),
			granuleShift: uint8(bits.TrailingZeros64(uint64(p.rt.device.Info().Granularity))),
		})
	}
	newTable.arenas[arenaIndex].setGranules(s, entry)
	w.table.Store(newTable)
	w.revision.Add(1)
}

// dropPool removes a closed pool. The pool's windows must have been removed before. Existing plans
// become stale, because they may contain the pool's addresses.
func (w *windows) dropPool(p *Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	remaining := slices.DeleteFunc(slices.Clone(*w.memberships.Load()), func(m *membership) bool {
		return m.pool == p
	})
	w.memberships.Store(&remaining)
	oldTable := w.table.Load()
	w.table.Store(&windowTable{
		arenas: slices.DeleteFunc(slices.Clone(oldTable.arenas), func(arena arenaTable) bool {
			return arena.pool == p
		}),
		count: oldTable.count,
	})
	w.revision.Add(1)
}

// setGranules stores an entry, or nil, for all granules of a segment. It changes copies of the
// chunks, because other goroutines may be reading the old chunks.
func (t *arenaTable) setGranules(s *segment, entry *windowEntry) {
	first := (uintptr(s.start) - t.base) >> t.granuleShift
	last := first + uintptr(s.bytes-1)>>t.granuleShift
	t.chunks = slices.Clone(t.chunks)
	for uintptr(len(t.chunks)) <= last>>chunkShift {
		t.chunks = append(t.chunks, nil)
	}
	var chunk *windowChunk
	for granule := first; granule <= last; granule++ {
		if index := granule >> chunkShift; chunk == nil || granule%chunkGranules == 0 {
			chunk = &windowChunk{}
			if t.chunks[index] != nil {
				*chunk = *t.chunks[index]
			}
			t.chunks[index] = chunk
		}
		chunk[granule%chunkGranules] = entry
	}
}
