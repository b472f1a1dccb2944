package symmem

import (
	"errors"
	"slices"

	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// realigner realigns a suspect pool on this rank. A fault of a group makes a pool suspect: ranks
// that see the fault later may have allocated more, and may place later buffers differently. A
// realignment has these steps:
//
//   - takeInventory lists segments and live blocks.
//   - The ranks exchange their inventories, and compute the same arrangement.
//   - rebuild applies the arrangement. Live blocks stay in place, and other memory becomes free.
//   - deregisterWithdrawn deregisters the segments to unmap.
type realigner struct {
	mu        *ranked.Spin[poolMu]
	history   *history
	suspicion *suspicion
	heap      *heap
	events    *poolEvents
}

// markSuspect makes the pool suspect, unless the fault of failedGroup has been repaired. A
// realignment passes nil, so that the pool stays suspect if the realignment fails.
func (r *realigner) markSuspect(failedGroup *lifetime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	isSuspect := r.suspicion.markSuspect(failedGroup, r.heap.liveBlocks)
	if isSuspect {
		r.heap.registrar.setPending() // makes prepared calls stale
	}
}

// mustRealign reports whether a group must realign the pool before a collective on a memory range.
// Buffers from before the fault are exempt, because ranks that have not detected the fault use them
// without a realignment.
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

		_, freedErr := r.heap.core.LiveBlock(block.Handle)
		return freedErr == nil
	})
}

// contains reports whether a range lies in a block. The caller must hold mu.
func (r *realigner) contains(block alloc.View, address uintptr, bytes int64) bool {
	segment := r.heap.segments.list[block.Segment]
	if segment == nil { // unmapped
		return false
	}

	blockStart := uintptr(segment.start) + uintptr(block.Offset)
	if address < blockStart {
		return false
	}

	offset := address - blockStart
	return offset < uintptr(block.Size) && bytes <= block.Size-int64(offset)
}

// takeInventory lists the pool's segments and blocks. The work queued before mark must be complete.
// If the program has changed the pool since mark, takeInventory returns an error.
func (r *realigner) takeInventory(mark alloc.Mark) (poolInventory, error) {
	streams := r.heap.streams.all()
	r.mu.Lock()
	defer r.mu.Unlock()
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

	inventory, err := r.heap.core.Inventory()
	poolLedger := r.heap.ledger
	return poolInventory{
		Pool: r.history.id, Position: poolLedger.Position(), Start: poolLedger.NextStart(),
		Inventory: inventory,
	}, err
}

// rebuild applies the arrangement to the pool and returns the segments to unmap. inventories is
// indexed by group rank. If that fails, for example because the pool has changed since
// takeInventory, rebuild does nothing, and the pool stays suspect.
func (r *realigner) rebuild(
	g *roster, arrangement alloc.Arrangement, inventories []poolInventory,
) []*segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	segments := r.heap.segments
	ownInventory := inventories[g.rank]
	hasChanged := r.heap.ledger.Position() != ownInventory.Position
	if segments.closed || hasChanged {
		return nil
	}

	unusedSegments, err := r.heap.core.Rebuild(arrangement)
	if err != nil {
		return nil
	}

	r.rearrangeSegments(arrangement)
	clear(r.heap.uses.useEndEvents) // Rebuild has freed all deferred blocks
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
	// The next segment's ordinal is the length of the list, which must be equal on all ranks.
	for len(segments.list) < len(arrangement.Segments) {
		segments.list = append(segments.list, nil)
	}

	for _, s := range segments.mappedSegments() {
		const streamAfterRebuild = 0
		s.stream = streamAfterRebuild
		isKept := arrangement.Segments[s.ordinal].Bytes > 0
		if !isKept {
			s.withdraw() // prevents new registrations
		}
	}
}

// restartHistory starts a history that is equal on all ranks, at a position that no rank has
// reached. The caller must hold mu.
func (r *realigner) restartHistory(arrangement alloc.Arrangement, inventories []poolInventory) {
	start := uint64(0)
	for _, inventory := range inventories {
		start = max(start, inventory.Start)
	}

	r.events.collect()
	anyInventory := inventories[0] // all have the same live blocks
	r.heap.ledger.Restart(start, digestOfArrangement(arrangement, anyInventory))
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
	for _, s := range arrangement.Segments {
		digest = ledger.Mix(digest, uint64(s.Bytes), segmentTag)
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

// deregisterWithdrawn deregisters the segments that rebuild has withdrawn.
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
