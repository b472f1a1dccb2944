package symmem

import (
	"errors"
	"slices"

	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// realigner gives a pool the same layout on all ranks after a fault.
type realigner struct {
	mu        *ranked.Spin[poolMu]
	history   *history
	suspicion *suspicion
	heap      *heap
	events    *poolEvents
}

// markSuspect marks the pool suspect: after a fault, its layout may differ between ranks. failed is
// the failed group, or nil if another rank has reported that the pool is suspect. The next use of
// the pool in any group then starts with a registration, which realigns the pool.
func (r *realigner) markSuspect(failed *lifetime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	suspicion := r.suspicion
	if failed != nil {
		if failed.fault.Load() == faultResolved {
			return
		}
		if suspicion.failedGroups == nil {
			suspicion.failedGroups = map[*lifetime]bool{}
		}
		suspicion.failedGroups[failed] = true
	}
	if !suspicion.raised {
		suspicion.preFault = r.heap.liveBlocks()
	}
	suspicion.raised, suspicion.aligned = true, nil
	r.heap.registrar.setPending() // also makes existing plans stale, even those for plain addresses
}

// mustAlign reports whether a collective of a group must realign the pool before it uses this
// memory. Buffers from before the fault need no realignment, so ranks that have seen the fault can
// still communicate through them with ranks that have not.
func (r *realigner) mustAlign(g *roster, address uintptr, bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspicion.raisedFor(g) && !r.isPreFault(address, bytes)
}

// isPreFault reports whether memory lies in a block that has been live since before the fault. The
// caller must hold mu.
func (r *realigner) isPreFault(address uintptr, bytes int64) bool {
	return slices.ContainsFunc(r.suspicion.preFault, func(b alloc.View) bool {
		s := r.heap.segments.list[b.Segment]
		if s == nil {
			return false
		}
		offset := address - uintptr(s.start) - uintptr(b.Offset)
		if offset >= uintptr(b.Size) || bytes > b.Size-int64(offset) {
			return false
		}
		_, err := r.heap.core.Live(b.Handle)
		return err == nil
	})
}

// takeInventory lists the pool's blocks. It drops uses recorded before the mark, because the
// caller has waited for that work.
func (r *realigner) takeInventory(mark alloc.Mark) (poolInventory, error) {
	streams := r.heap.streams.all()
	r.mu.Lock()
	defer r.mu.Unlock()
	// Do not test whether Close has begun, because Close waits for calls that have entered the
	// pool.
	if r.heap.segments.closed {
		return poolInventory{}, errPoolClosed
	}
	if !r.heap.core.QuietSince(mark) {
		return poolInventory{}, errors.New(
			"another goroutine used or freed a buffer during the realignment")
	}
	for _, s := range streams {
		r.heap.uses.endUses(s, mark)
	}
	held, err := r.heap.core.Held()
	past := r.heap.ledger
	return poolInventory{
		Pool: r.history.id, Position: past.Position(), Start: past.NextStart(), Inventory: held,
	}, err
}

// rebuild arranges the pool, restarts its history and returns the segments to unmap. If another
// goroutine has changed the pool since takeInventory, rebuild does nothing and the pool stays
// suspect.
func (r *realigner) rebuild(
	g *roster, arrangement alloc.Arrangement, inventories []poolInventory,
) []*segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	table, past := r.heap.segments, r.heap.ledger
	if table.closed || past.Position() != inventories[g.rank].Position {
		return nil
	}
	gone, err := r.heap.core.Rebuild(arrangement)
	if err != nil {
		return nil
	}
	for len(table.list) < len(arrangement.Segments) {
		table.list = append(table.list, nil)
	}
	for _, s := range table.mapped() {
		s.stream = 0
		s.releasing = s.releasing || arrangement.Segments[s.ordinal].Bytes == 0
	}
	clear(r.heap.uses.useEnds)
	start := uint64(0)
	for _, s := range inventories {
		start = max(start, s.Start)
	}
	r.events.collect()
	past.Restart(start, digestOf(arrangement, inventories[0]))
	r.events.recordRestart(start)
	r.suspicion.noteRealigned(g)
	var segments []*segment
	for _, s := range gone {
		segments = append(segments, table.list[s.Ordinal])
	}
	slices.SortFunc(segments, byOrdinal)
	return segments
}

func digestOf(arrangement alloc.Arrangement, s poolInventory) uint64 {
	d := ledger.Empty
	for _, extent := range arrangement.Segments {
		d = ledger.Mix(d, uint64(extent.Bytes), 1)
	}
	for _, r := range arrangement.Kept {
		d = ledger.Mix(ledger.Mix(d, uint64(r.Segment), uint64(r.Offset)), uint64(r.Size), 2)
	}
	for _, b := range s.Blocks {
		if b.Live {
			d = ledger.Mix(ledger.Mix(d, uint64(b.Segment), uint64(b.Offset)), uint64(b.Size),
				uint64(b.Stream)<<8|3)
		}
	}
	return d
}

func (r *realigner) deregisterReleasing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, s := range r.heap.segments.mapped() {
		if s.releasing {
			errs = append(errs, r.heap.registrar.deregister(s))
		}
	}
	return errors.Join(errs...)
}
