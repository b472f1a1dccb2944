package symmem

import (
	"errors"
	"slices"

	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// realigner gives a pool the same layout on all ranks after a group has failed. When a group
// fails, one rank may have made requests to the pool that another rank never makes. To repair the
// pool, each rank takes an inventory of its blocks. The ranks exchange their inventories, and
// compute one arrangement from them. Each rank then rebuilds its pool with that arrangement.
type realigner struct {
	mu        *ranked.Spin[poolMu]
	history   *history
	suspicion *suspicion // whether the pool's layout may differ
	heap      *heap
	events    *poolEvents
}

// markSuspect records that the pool's layout may differ between ranks. The next call that uses the
// pool then realigns it. failedGroup is the group whose fault is the reason, or nil if another rank
// has reported that the pool is suspect. If that fault has been repaired, markSuspect does nothing.
func (r *realigner) markSuspect(failedGroup *lifetime) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hasMarked := r.suspicion.markSuspect(failedGroup, r.heap.liveBlocks)
	if hasMarked {
		r.heap.registrar.setPending() // so that no prepared call runs before the realignment
	}
}

// mustRealign reports whether a group must realign the pool before a collective on a memory range.
// A buffer from before the fault needs no realignment. With such a buffer, a rank that knows of the
// fault can communicate with ranks that do not know of it yet.
func (r *realigner) mustRealign(g *roster, address uintptr, bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspicion.isSuspectForLocked(g) && !r.wasLiveBeforeFault(address, bytes)
}

// wasLiveBeforeFault reports whether a range lies in a buffer that was live when the pool became
// suspect and that has not been freed since. The caller must hold mu.
func (r *realigner) wasLiveBeforeFault(address uintptr, bytes int64) bool {
	return slices.ContainsFunc(r.suspicion.blocksBeforeFault, func(block alloc.View) bool {
		segment := r.heap.segments.list[block.Segment]
		if segment == nil { // unmapped
			return false
		}

		blockAddress := uintptr(segment.start) + uintptr(block.Offset)
		offset := address - blockAddress // wraps around to a huge value below the block
		if offset >= uintptr(block.Size) || bytes > block.Size-int64(offset) {
			return false
		}

		_, err := r.heap.core.LiveBlock(block.Handle)
		isStillLive := err == nil
		return isStillLive
	})
}

// takeInventory ends the uses of blocks by work that was queued before the mark, and lists the
// pool's segments and blocks. Call it after this work is complete. It returns an error if the pool
// is closed, or if a block was used or freed after the mark.
func (r *realigner) takeInventory(mark alloc.Mark) (poolInventory, error) {
	streams := r.heap.streams.all()
	r.mu.Lock()
	defer r.mu.Unlock()
	// Do not check whether Close has begun: it waits for this call.
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

// rebuild changes the pool's layout to the arrangement, restarts its history and returns the
// segments to unmap. inventories holds the pool's inventory on each group rank. If the pool is
// closed or has changed since takeInventory, rebuild returns nil and the pool stays suspect.
func (r *realigner) rebuild(
	g *roster, arrangement alloc.Arrangement, inventories []poolInventory,
) []*segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	segments, poolLedger := r.heap.segments, r.heap.ledger
	hasChanged := poolLedger.Position() != inventories[g.rank].Position
	if segments.closed || hasChanged {
		return nil
	}

	unusedSegments, err := r.heap.core.Rebuild(arrangement)
	if err != nil {
		return nil
	}

	// Other ranks may have mapped more segments. Give new segments the same ordinals on all ranks.
	for len(segments.list) < len(arrangement.Segments) {
		segments.list = append(segments.list, nil)
	}

	for _, s := range segments.mappedSegments() {
		s.stream = 0 // Rebuild has given all free memory to stream 0
		isUnused := arrangement.Segments[s.ordinal].Bytes == 0
		if isUnused {
			s.withdraw()
		}
	}

	clear(r.heap.uses.useEndEvents) // no deferred blocks are left: otherwise, Rebuild fails
	start := uint64(0)
	for _, inventory := range inventories {
		start = max(start, inventory.Start)
	}

	r.events.collect()
	poolLedger.Restart(start, digestOfArrangement(arrangement, inventories[0]))
	r.events.recordRestart(start)
	r.suspicion.recordRealigned(g)
	var toUnmap []*segment
	for _, s := range unusedSegments {
		toUnmap = append(toUnmap, segments.list[s.Ordinal])
	}

	slices.SortFunc(toUnmap, compareOrdinals)
	return toUnmap
}

// digestOfArrangement returns a digest of the arrangement and of the live blocks in an inventory.
func digestOfArrangement(arrangement alloc.Arrangement, inventory poolInventory) uint64 {
	// The tags keep the digest of one kind of entry different from that of another kind.
	const segmentTag, keptRangeTag, liveBlockTag = 1, 2, 3
	digest := ledger.Empty
	for _, extent := range arrangement.Segments {
		digest = ledger.Mix(digest, uint64(extent.Bytes), segmentTag)
	}

	for _, r := range arrangement.KeptRanges {
		digest = ledger.Mix(digest, uint64(r.Segment), uint64(r.Offset))
		digest = ledger.Mix(digest, uint64(r.Size), keptRangeTag)
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

// deregisterWithdrawn deregisters the segments that are about to be unmapped.
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
