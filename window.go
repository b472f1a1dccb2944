package symmem

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// A pool reserves an address range, the arena, and maps segments of it. Registering a segment with
// a group creates a window, through which the ranks access each other's memory. To find the window
// of an address, a two-level table divides the arena into granules, for example of 2 MiB, and
// chunks of 512 granules. A registration copies the chunks that it changes.

// windowTable contains a group's windows. It is immutable, so that findWindow needs no lock.
type windowTable struct {
	arenas []arenaTable
	count  int // number of windows
}

// arenaTable maps each granule of a pool's arena to a window.
type arenaTable struct {
	pool         *Pool
	base         uintptr        // first address of the arena
	bytes        uintptr        // size of the arena
	granuleShift uint8          // log2 of the bytes in a granule
	chunks       []*windowChunk // nil for a chunk without windows; may be shorter than the arena
}

const (
	chunkShift    = 9 // log2 of chunkGranules
	chunkGranules = 1 << chunkShift
)

// windowChunk maps granules to windows, or to nil.
type windowChunk [chunkGranules]*windowEntry

type windowEntry struct {
	pool    *Pool
	segment *segment
	window  driver.Window
}

// findWindow returns the window that contains the first address of a range, or nil, and reports
// whether it contains the whole range.
func (t *windowTable) findWindow(
	address uintptr, bytes int64,
) (entry *windowEntry, isInWindow bool) {
	for i := range t.arenas {
		arena := &t.arenas[i]
		offset := address - arena.base // wraps to a huge number for an address below base
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

// contains reports whether the window contains a range of addresses that begins in the window. A
// nil entry contains no range.
func (e *windowEntry) contains(address uintptr, bytes int64) bool {
	if e == nil {
		return false
	}

	offset := int64(address - uintptr(e.segment.start))
	remaining := e.segment.bytes - offset // bytes from address to the end of the segment
	return bytes >= 0 && bytes <= remaining
}

// locate converts an address in the window to values that are the same on every rank.
func (e *windowEntry) locate(address uintptr) (pool uint64, segment int32, offset int64) {
	return e.pool.id, e.segment.ordinal, int64(address - uintptr(e.segment.start))
}

// withGranules returns a copy of t in which all granules of a segment have the given entry, which
// may be nil. Concurrent readers of t keep the old chunks.
func (t arenaTable) withGranules(s *segment, entry *windowEntry) arenaTable {
	start := uintptr(s.start) - t.base
	end := start + uintptr(s.bytes)
	firstGranule := start >> t.granuleShift
	lastGranule := (end - 1) >> t.granuleShift
	t.chunks = t.cloneChunks(firstGranule>>chunkShift, lastGranule>>chunkShift)
	for granule := firstGranule; granule <= lastGranule; granule++ {
		chunk := t.chunks[granule>>chunkShift]
		chunk[granule%chunkGranules] = entry
	}

	return t
}

// cloneChunks returns a copy of t.chunks that contains copies of the chunks from first to last.
func (t *arenaTable) cloneChunks(first, last uintptr) []*windowChunk {
	chunks := slices.Clone(t.chunks)
	for uintptr(len(chunks)) <= last {
		chunks = append(chunks, nil)
	}

	for i := first; i <= last; i++ {
		chunks[i] = chunks[i].clone()
	}

	return chunks
}

// clone returns an empty chunk for a nil c.
func (c *windowChunk) clone() *windowChunk {
	if c == nil {
		return &windowChunk{}
	}

	copied := *c
	return &copied
}

// windows contains a group's windows, and a membership, the registration state, for each pool that
// registers segments with the group.
type windows struct {
	mu          *ranked.Spin[groupState] // held to replace the table or the list of memberships
	table       atomic.Pointer[windowTable]
	memberships atomic.Pointer[[]*membership]
	// A plan is a prepared call with fixed windows and addresses. It becomes stale when revision
	// differs from the revision at the start of the preparation.
	revision atomic.Uint64
}

func (w *windows) init(state *ranked.Spin[groupState]) {
	w.mu = state
	w.table.Store(&windowTable{})
	w.memberships.Store(&[]*membership{})
}

// makePlansStale discards all plans, including those in preparation.
func (w *windows) makePlansStale() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision.Add(1)
}

// contains reports whether one window contains the whole range.
func (w *windows) contains(address uintptr, bytes int64) bool {
	_, isInWindow := w.table.Load().findWindow(address, bytes)
	return isInWindow
}

// add requires that the segment has no window yet.
func (w *windows) add(p *Pool, s *segment, window driver.Window) {
	const addedWindows = 1
	w.changeWindow(p, s, &windowEntry{pool: p, segment: s, window: window}, addedWindows)
}

// remove requires that the segment has a window.
func (w *windows) remove(p *Pool, s *segment) {
	const addedWindows = -1
	w.changeWindow(p, s, nil, addedWindows)
}

// changeWindow replaces the table by a copy with the given entry for a segment, and makes all plans
// stale. The entry may be nil.
func (w *windows) changeWindow(p *Pool, s *segment, entry *windowEntry, addedWindows int) {
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
	w.table.Store(&windowTable{arenas: arenas, count: oldTable.count + addedWindows})
	w.revision.Add(1)
}

func newArenaTable(p *Pool) arenaTable {
	granuleBytes := uint64(p.rt.device.Info().Granularity) // a power of two
	return arenaTable{
		pool: p, base: p.segments.arena.Address(), bytes: uintptr(p.segments.arenaBytes),
		granuleShift: uint8(bits.TrailingZeros64(granuleBytes)),
	}
}

// membershipOf returns the group's membership for a pool, or nil, without locking.
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
	memberships := append(slices.Clone(*w.memberships.Load()), m)
	w.memberships.Store(&memberships)
}

// dropPool removes a pool whose windows have already been removed. It makes all plans stale,
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
