package symmem

import (
	"errors"
	"slices"

	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// If a group fails between an allocation on rank 0 and the same allocation on rank 1, the pool
// would place later buffers differently on the two ranks. Such a pool is suspect. In a realignment,
// the ranks exchange inventories of their segments and live blocks, compute the same arrangement
// from them, and rebuild their pools. Live blocks stay in place, and other memory becomes free.

// realigner implements the steps of a pool's realignment on this rank.
type realigner struct {
	mu        *ranked.Spin[poolMu]
	history   *history
	suspicion *suspicion
	heap      *heap
	events    *poolEvents
}

// markSuspect makes the pool suspect, unless the pools of failedGroup have been realigned since the
// failure. failedGroup is nil during a realignment.
func (r *realigner) markSuspect(failedGroup *lifetime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hasMarked := r.suspicion.markSuspect(failedGroup, r.heap.liveBlocks)
	if hasMarked {
		r.heap.registrar.setPending() // makes prepared calls stale, because they do not realign
	}
}

// mustRealign reports whether a group must realign the pool before a collective on a memory range.
// It returns false for buffers from before the fault, so that ranks can use them to communicate
// with ranks that have not detected the fault yet.
func (r *realigner) mustRealign(g *roster, address uintptr, bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspicion.isSuspectForLocked(g) && !r.isFromBeforeFault(address, bytes)
}

// isFromBeforeFault reports whether a range lies in a live block that existed before the pool
// became suspect. The caller must hold mu.
func (r *realigner) isFromBeforeFault(address uintptr, bytes int64) bool {
	return slices.ContainsFunc(r.suspicion.blocksBeforeFault, func(block alloc.View) bool {
		if !r.contains(block, address, bytes) {
			return false
		}

		_, err := r.heap.core.LiveBlock(block.Handle)
		isStillLive := err == nil
		return isStillLive
	})
}

// contains reports whether a range lies in a block. The caller must hold mu.
func (r *realigner) contains(block alloc.View, address uintptr, bytes int64) bool {
	segment := r.heap.segments.list[block.Segment]
	isMapped := segment != nil
	if !isMapped {
		return false
	}

	blockStart := uintptr(segment.start) + uintptr(block.Offset)
	if address < blockStart {
		return false
	}

	offset := address - blockStart
	return offset < uintptr(block.Size) && bytes <= block.Size-int64(offset)
}

// takeInventory lists the pool's segments and blocks. The caller has waited for the work queued
// before mark. If the program has changed the pool since then, takeInventory returns an error.
func (r *realigner) takeInventory(mark alloc.Mark) (poolInventory, error) {
	streams := r.heap.streams.all()
	r.mu.Lock()
	defer r.mu.Unlock()
	// A Close that has begun waits for this call before it sets closed.
	if r.heap.segments.closed {
		return poolInventory{}, errPoolClosed
	}

	if !r.heap.core.IsUnchangedSince(mark) {
		return poolInventory{}, errors.New(
			"another goroutine used or freed a buffer during the realignment")
	}

	for _, s := range streams {
		r.heap.uses.endUsesBefore(s, mark)
	}

	blocks, err := r.heap.core.Inventory()
	poolLedger := r.heap.ledger
	return poolInventory{
		Pool: r.history.id, Position: poolLedger.Position(), Start: poolLedger.NextStart(),
		Inventory: blocks,
	}, err
}

// rebuild applies the arrangement to the pool and returns the segments to unmap. inventories is
// indexed by group rank. If the pool is closed or has changed since takeInventory, rebuild returns
// nil and the pool stays suspect.
func (r *realigner) rebuild(
	g *roster, arrangement alloc.Arrangement, inventories []poolInventory,
) []*segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	segments := r.heap.segments
	hasChanged := r.heap.ledger.Position() != inventories[g.rank].Position
	if segments.closed || hasChanged {
		return nil
	}

	unusedSegments, err := r.heap.core.Rebuild(arrangement)
	if err != nil {
		return nil
	}

	r.rearrangeSegments(arrangement)
	clear(r.heap.uses.useEndEvents) // after Rebuild, no block waits for the end of its uses
	r.restartHistory(arrangement, inventories)
	r.suspicion.recordRealigned(g)
	var toUnmap []*segment
	for _, s := range unusedSegments {
		toUnmap = append(toUnmap, segments.list[s.Ordinal])
	}

	slices.SortFunc(toUnmap, compareOrdinals)
	return toUnmap
}

// rearrangeSegments updates the segment table after core.Rebuild. The caller must hold mu.
func (r *realigner) rearrangeSegments(arrangement alloc.Arrangement) {
	segments := r.heap.segments
	// Skip ordinals that other ranks use, so that the next segment gets the same one on all ranks.
	for len(segments.list) < len(arrangement.Segments) {
		segments.list = append(segments.list, nil)
	}

	for _, s := range segments.mappedSegments() {
		s.stream = 0 // Rebuild has given all free memory to stream 0
		isKept := arrangement.Segments[s.ordinal].Bytes > 0
		if !isKept {
			s.withdraw() // prevents new registrations
		}
	}
}

// restartHistory gives the pool a history that is equal on all ranks, starting at a position that
// no rank has reached. The caller must hold mu.
func (r *realigner) restartHistory(arrangement alloc.Arrangement, inventories []poolInventory) {
	start := uint64(0)
	for _, inventory := range inventories {
		start = max(start, inventory.Start)
	}

	r.events.collect()
	r.heap.ledger.Restart(start, digestOfArrangement(arrangement, inventories[0]))
	r.events.recordRestart(start)
}

func digestOfArrangement(arrangement alloc.Arrangement, inventory poolInventory) uint64 {
	const (
		segmentTag   = 1
		keptRangeTag = 2
		liveBlockTag = 3
		tagBits      = 8
	)
	digest := ledger.Empty
	for _, extent := range arrangement.Segments {
		digest = ledger.Mix(digest, uint64(extent.Bytes), segmentTag)
	}

	for _, kept := range arrangement.KeptRanges { // memory that graphs use on some rank
		digest = ledger.Mix(digest, uint64(kept.Segment), uint64(kept.Offset))
		digest = ledger.Mix(digest, uint64(kept.Size), keptRangeTag)
	}

	for _, b := range inventory.Blocks {
		if b.Live {
			streamAndTag := uint64(b.Stream)<<tagBits | liveBlockTag
			digest = ledger.Mix(digest, uint64(b.Segment), uint64(b.Offset))
			digest = ledger.Mix(digest, uint64(b.Size), streamAndTag)
		}
	}

	return digest
}

// deregisterWithdrawn ends the registrations of the segments that rebuild has withdrawn.
func (r *realigner) deregisterWithdrawn() error {
	segments := r.heap.segments
	return segments.end(func() (calls unlockedCalls) {
		for _, s := range segments.mappedSegments() {
			if s.withdrawn {
				calls = append(calls, r.heap.registrar.deregister(s)...)
			}
		}

		return calls
	})
}
