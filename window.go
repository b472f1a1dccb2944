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
	bytes        uintptr        // of addresses, of which only some are mapped
	granuleShift uint8          // log2 of a granule's bytes
	chunks       []*windowChunk // nil for chunks without windows; chunks at the end may be missing
}

// A chunk of 512 granules of 2 MiB covers 1 GiB.
const (
	chunkShift    = 9 // log2 of chunkGranules
	chunkGranules = 1 << chunkShift
)

// windowChunk has nil for each granule that lies in no window.
type windowChunk [chunkGranules]*windowEntry

// windowEntry is a window: the registration of a segment (memory that a pool mapped at once).
type windowEntry struct {
	pool    *Pool
	segment *segment
	window  driver.Window
}

// findWindow returns the window in which an address range begins, or nil if it begins in none.
// isInWindow is true if the whole range lies in that window.
func (t *windowTable) findWindow(
	address uintptr, bytes int64,
) (entry *windowEntry, isInWindow bool) {
	for i := range t.arenas {
		arena := &t.arenas[i]
		offset := address - arena.base // wraps around to a huge value below base
		if offset >= arena.bytes {
			continue
		}

		granule := offset >> arena.granuleShift
		chunk := granule >> chunkShift
		if chunk >= uintptr(len(arena.chunks)) || arena.chunks[chunk] == nil {
			return nil, false
		}

		entry = arena.chunks[chunk][granule%chunkGranules]
		return entry, entry.contains(address, bytes) // entry may be nil
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

// windows holds a group's windows and its memberships. (A membership is a group's use of a pool.)
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

// add adds the window of a segment that had none.
func (w *windows) add(p *Pool, s *segment, window driver.Window) {
	w.setWindow(p, s, &windowEntry{pool: p, segment: s, window: window})
}

// remove removes the window of a segment that has one.
func (w *windows) remove(p *Pool, s *segment) { w.setWindow(p, s, nil) }

// setWindow stores an entry for all granules of a segment. If the entry is nil, it removes the
// segment's entry.
func (w *windows) setWindow(p *Pool, s *segment, entry *windowEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldTable := w.table.Load()
	newTable := &windowTable{arenas: slices.Clone(oldTable.arenas), count: oldTable.count}
	if entry != nil {
		newTable.count++
	} else {
		newTable.count--
	}

	arenaIndex := slices.IndexFunc(newTable.arenas, func(a arenaTable) bool { return a.pool == p })
	if arenaIndex < 0 {
		arenaIndex = len(newTable.arenas)
		granuleBytes := uint64(p.rt.device.Info().Granularity) // a power of two
		newTable.arenas = append(newTable.arenas, arenaTable{
			pool: p, base: p.segments.arena.Address(), bytes: uintptr(p.segments.arenaBytes),
			granuleShift: uint8(bits.TrailingZeros64(granuleBytes)),
		})
	}

	newTable.arenas[arenaIndex].setGranules(s, entry)
	w.table.Store(newTable)
	w.revision.Add(1)
}

// dropPool removes a closed pool. Call it after the pool's windows have been removed. Existing
// plans become stale, because they may contain the pool's addresses.
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

	for index := first >> chunkShift; index <= last>>chunkShift; index++ {
		chunk := &windowChunk{}
		if t.chunks[index] != nil {
			*chunk = *t.chunks[index]
		}

		chunkStart := index << chunkShift // the chunk's first granule
		chunkEnd := chunkStart + chunkGranules - 1
		for granule := max(first, chunkStart); granule <= min(last, chunkEnd); granule++ {
			chunk[granule%chunkGranules] = entry
		}

		t.chunks[index] = chunk
	}
}
