package symmem

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// A pool reserves a range of addresses, its arena, and maps memory there in parts, its segments.
// When the ranks of a group register a segment together, they create a window, through which each
// rank accesses the memory of the others. When a group prepares a collective, it looks up the
// window of each buffer in a table.
//
// Suppose that an arena begins at address A. Its first segment has 64 MiB and is registered. The
// table divides the arena into granules of 2 MiB, the unit of segment sizes on this device. The
// granules 0 to 31 refer to the segment's window. A buffer at A + 5 MiB begins in granule 2, so it
// begins in this window.
//
// 512 granules form a chunk. A registration changes copies of the chunks in which the segment lies.
// The new table shares all other chunks with the old table.

// windowTable lists a group's windows. It is immutable, so that findWindow needs no lock.
type windowTable struct {
	arenas []arenaTable
	count  int // number of windows
}

// arenaTable maps each granule of a pool's arena to a window.
type arenaTable struct {
	pool         *Pool
	base         uintptr // first address of the arena
	bytes        uintptr // size of the arena
	granuleShift uint8   // log2 of a granule's size in bytes
	// chunks may have a nil element for a chunk without windows. Chunks at the end may be missing.
	chunks []*windowChunk
}

const (
	chunkShift    = 9 // log2 of chunkGranules
	chunkGranules = 1 << chunkShift
)

// windowChunk maps its granules to windows. The entry of a granule without a window is nil.
type windowChunk [chunkGranules]*windowEntry

// windowEntry is a window and the segment that it belongs to.
type windowEntry struct {
	pool    *Pool // the segment's pool
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
		offset := address - arena.base // a huge number for an address below base
		isInArena := offset < arena.bytes
		if isInArena {
			entry = arena.entryAt(offset)
			return entry, entry.contains(address, bytes)
		}
	}

	return nil, false
}

// entryAt returns the window at an offset in the arena, or nil.
func (t *arenaTable) entryAt(offset uintptr) *windowEntry {
	granule := offset >> t.granuleShift
	chunk := granule >> chunkShift
	hasChunk := chunk < uintptr(len(t.chunks)) && t.chunks[chunk] != nil
	if !hasChunk {
		return nil
	}

	return t.chunks[chunk][granule%chunkGranules]
}

// contains reports whether a range that begins in the window also ends there. For a nil entry, it
// returns false.
func (e *windowEntry) contains(address uintptr, bytes int64) bool {
	if e == nil {
		return false
	}

	offset := int64(address - uintptr(e.segment.start))
	remaining := e.segment.bytes - offset // bytes from address to the end of the segment
	return bytes >= 0 && bytes <= remaining
}

// locate returns where in the window an address lies. Unlike the address, the pool's id, the
// segment's number and the offset in the segment are the same on every rank.
func (e *windowEntry) locate(address uintptr) (pool uint64, segment int32, offset int64) {
	return e.pool.id, e.segment.ordinal, int64(address - uintptr(e.segment.start))
}

// withGranules returns a copy of t in which all granules of a segment have the given entry, which
// may be nil. It copies each chunk that it changes, because other goroutines may be reading it.
func (t arenaTable) withGranules(s *segment, entry *windowEntry) arenaTable {
	startOffset := uintptr(s.start) - t.base
	endOffset := startOffset + uintptr(s.bytes)
	first := startOffset >> t.granuleShift
	last := (endOffset - 1) >> t.granuleShift
	firstChunk, lastChunk := first>>chunkShift, last>>chunkShift
	t.chunks = slices.Clone(t.chunks)
	for uintptr(len(t.chunks)) <= lastChunk {
		t.chunks = append(t.chunks, nil)
	}

	for index := firstChunk; index <= lastChunk; index++ {
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

	return t
}

// windows holds a group's table of windows and its memberships: one for each pool whose segments
// the group registers.
type windows struct {
	mu          *ranked.Spin[groupState] // held to replace the table or the list of memberships
	table       atomic.Pointer[windowTable]
	memberships atomic.Pointer[[]*membership]
	// revision makes plans stale. A plan is a prepared call, which contains windows and addresses.
	// Plans from before the latest increment are not used again.
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

// contains reports whether a range lies in one of the windows.
func (w *windows) contains(address uintptr, bytes int64) bool {
	_, isInWindow := w.table.Load().findWindow(address, bytes)
	return isInWindow
}

// add adds the window of a segment that had none.
func (w *windows) add(p *Pool, s *segment, window driver.Window) {
	w.changeWindow(p, s, &windowEntry{pool: p, segment: s, window: window}, 1)
}

// remove removes the window of a segment that has one.
func (w *windows) remove(p *Pool, s *segment) { w.changeWindow(p, s, nil, -1) }

// changeWindow replaces the table by a copy in which a segment has the given entry, which may be
// nil. countChange is the change in the number of windows. All plans become stale.
func (w *windows) changeWindow(p *Pool, s *segment, entry *windowEntry, countChange int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldTable := w.table.Load()
	arenas := slices.Clone(oldTable.arenas)
	i := slices.IndexFunc(arenas, func(a arenaTable) bool { return a.pool == p })
	if i < 0 {
		i = len(arenas)
		arenas = append(arenas, newArenaTable(p))
	}

	arenas[i] = arenas[i].withGranules(s, entry)
	w.table.Store(&windowTable{arenas: arenas, count: oldTable.count + countChange})
	w.revision.Add(1)
}

// newArenaTable returns a table without windows.
func newArenaTable(p *Pool) arenaTable {
	granuleBytes := uint64(p.rt.device.Info().Granularity) // a power of two
	return arenaTable{
		pool: p, base: p.segments.arena.Address(), bytes: uintptr(p.segments.arenaBytes),
		granuleShift: uint8(bits.TrailingZeros64(granuleBytes)),
	}
}

// membershipOf returns the group's membership for a pool, or nil. It takes no lock.
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

// dropPool removes a closed pool, whose windows have been removed before. All plans become stale,
// because they may contain addresses of the pool.
func (w *windows) dropPool(p *Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	memberships := slices.Clone(*w.memberships.Load())
	memberships = slices.DeleteFunc(memberships, func(m *membership) bool { return m.pool == p })
	w.memberships.Store(&memberships)

	oldTable := w.table.Load()
	arenas := slices.Clone(oldTable.arenas)
	arenas = slices.DeleteFunc(arenas, func(a arenaTable) bool { return a.pool == p })
	w.table.Store(&windowTable{arenas: arenas, count: oldTable.count})
	w.revision.Add(1)
}
