package symmem

import (
	"errors"
	"slices"

	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// If a group fails when only rank 0 has allocated some buffer, the pool would place later buffers
// differently on rank 1. The pool is then suspect, and must be realigned: the ranks exchange
// inventories of their segments and live blocks, compute the same arrangement from them, and
// rebuild their pools. Live blocks stay in place, and other memory becomes free.

// realigner implements the steps of a realignment on one pool.
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
		r.heap.registrar.setPending() // stops prepared calls until the realignment
	}
}

// mustRealign reports whether a group must realign the pool before a collective on a memory range.
// Buffers from before the fault need no realignment, so that a rank can use them to communicate
// with ranks that have not detected the fault yet.
func (r *realigner) mustRealign(g *roster, address uintptr, bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspicion.isSuspectForLocked(g) && !r.wasLiveBeforeFault(address, bytes)
}

// wasLiveBeforeFault reports whether a range lies in a block that has been live since before the
// pool became suspect. The caller must hold mu.
func (r *realigner) wasLiveBeforeFault(address uintptr, bytes int64) bool {
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

// takeInventory lists the pool's segments and blocks. All work before mark must be complete.
func (r *realigner) takeInventory(mark alloc.Mark) (poolInventory, error) {
	streams := r.heap.streams.all()
	r.mu.Lock()
	defer r.mu.Unlock()
	// A Close that has only begun waits for this call.
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

	// New segments must get the same ordinals on all ranks, even if other ranks have mapped more.
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
	const segmentTag, keptRangeTag, liveBlockTag = 1, 2, 3
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
			streamAndTag := uint64(b.Stream)<<8 | liveBlockTag
			digest = ledger.Mix(digest, uint64(b.Segment), uint64(b.Offset))
			digest = ledger.Mix(digest, uint64(b.Size), streamAndTag)
		}
	}

	return digest
}

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
