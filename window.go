package symmem

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Registering a pool's segment with a group creates a window, through which the ranks access each
// other's memory. To find the window of an address, a table maps each granule of the pool's arena
// (its address range) to a window. A registration copies only the chunks of granules that change.

// windowTable contains a group's windows. It is immutable, so that findWindow needs no lock.
type windowTable struct {
	arenas      []arenaTable
	windowCount int
}

// arenaTable maps each granule of a pool's arena to a window.
type arenaTable struct {
	pool         *Pool
	base         uintptr // first address of the arena
	bytes        uintptr
	granuleShift uint8          // log2 of the bytes in a granule
	chunks       []*windowChunk // nil chunks, and those after the last, contain no windows
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

// findWindow returns the window at the first address of a range, or nil. isInWindow reports whether
// the window contains the whole range.
func (t *windowTable) findWindow(
	address uintptr, bytes int64,
) (entry *windowEntry, isInWindow bool) {
	for i := range t.arenas {
		arena := &t.arenas[i]
		offset := address - arena.base // wraps to a huge number below base
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

// contains reports whether the window contains a range that begins in it. e may be nil.
func (e *windowEntry) contains(address uintptr, bytes int64) bool {
	if e == nil {
		return false
	}

	offset := int64(address - uintptr(e.segment.start))
	bytesToEnd := e.segment.bytes - offset
	return bytes >= 0 && bytes <= bytesToEnd
}

// positionOf converts an address in the window to a position that ranks can compare.
func (e *windowEntry) positionOf(address uintptr) (pool uint64, segment int32, offset int64) {
	return e.pool.id, e.segment.ordinal, int64(address - uintptr(e.segment.start))
}

// withEntry returns a copy of t that maps the granules of a segment to an entry, which may be nil.
// Concurrent readers of t keep the old chunks.
func (t arenaTable) withEntry(s *segment, entry *windowEntry) arenaTable {
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

// cloneChunks returns a copy of t.chunks with copies of the chunks from first to last.
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

// clone returns a copy of c, or an empty chunk if c is nil.
func (c *windowChunk) clone() *windowChunk {
	if c == nil {
		return &windowChunk{}
	}

	copied := *c
	return &copied
}

// windows contains a group's windows, and a membership for each pool that registers segments with
// the group.
type windows struct {
	mu          *ranked.Spin[groupState] // held to change the other fields
	table       atomic.Pointer[windowTable]
	memberships atomic.Pointer[[]*membership]
	// revision counts changes that make plans stale. A plan is a call prepared for some windows.
	revision atomic.Uint64
}

func (w *windows) init(state *ranked.Spin[groupState]) {
	w.mu = state
	w.table.Store(&windowTable{})
	w.memberships.Store(&[]*membership{})
}

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

// add adds a segment's window. The segment must have none.
func (w *windows) add(p *Pool, s *segment, window driver.Window) {
	w.changeEntry(p, s, &windowEntry{pool: p, segment: s, window: window})
}

// remove removes a segment's window. The segment must have one.
func (w *windows) remove(p *Pool, s *segment) { w.changeEntry(p, s, nil) }

// changeEntry replaces the table by a copy in which s has the entry or, if entry is nil, none. It
// makes all plans stale.
func (w *windows) changeEntry(p *Pool, s *segment, entry *windowEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	oldTable := w.table.Load()
	arenas := slices.Clone(oldTable.arenas)
	i := slices.IndexFunc(arenas, func(a arenaTable) bool { return a.pool == p })
	if i < 0 {
		i = len(arenas)
		arenas = append(arenas, newArenaTable(p))
	}

	arenas[i] = arenas[i].withEntry(s, entry)
	count := oldTable.windowCount + 1
	if entry == nil {
		count = oldTable.windowCount - 1
	}

	w.table.Store(&windowTable{arenas: arenas, windowCount: count})
	w.revision.Add(1)
}

func newArenaTable(p *Pool) arenaTable {
	granuleBytes := uint64(p.rt.device.Info().Granularity) // a power of two
	return arenaTable{
		pool: p, base: p.segments.arena.Address(), bytes: uintptr(p.segments.arenaBytes),
		granuleShift: uint8(bits.TrailingZeros64(granuleBytes)),
	}
}

// membershipOf returns the membership for a pool, or nil, without locking.
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

// dropPool removes a pool that has no windows. It makes all plans stale, because some may contain
// addresses of the pool.
func (w *windows) dropPool(p *Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	memberships := slices.Clone(*w.memberships.Load())
	memberships = slices.DeleteFunc(memberships, func(m *membership) bool { return m.pool == p })
	w.memberships.Store(&memberships)

	oldTable := w.table.Load()
	arenas := slices.Clone(oldTable.arenas)
	arenas = slices.DeleteFunc(arenas, func(a arenaTable) bool { return a.pool == p })
	w.table.Store(&windowTable{arenas: arenas, windowCount: oldTable.windowCount})
	w.revision.Add(1)
}
