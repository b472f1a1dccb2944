package symmem

import (
	"errors"
	"slices"

	"symmem/internal/alloc"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// Suppose that rank 0 allocates a buffer, for which its pool maps a new segment. Then the group
// fails, and rank 0 frees the buffer. Rank 1 has seen the fault earlier, and has not allocated the
// buffer. From now on, the next buffer would be at different places on the two ranks. The pool is
// therefore suspect. Before the ranks use new buffers again, they realign the pool:
//
//   - Each rank takes an inventory: it lists the segments and the live blocks of its pool.
//   - The ranks exchange their inventories. From these, all ranks compute the same arrangement. The
//     live blocks stay where they are, and all other memory becomes free.
//   - Each rank rebuilds its pool with the arrangement, and unmaps the segments that are not in it,
//     unless graphs use them. It also restarts the pool's history, which ranks compare.

// realigner implements the steps of a realignment for one pool.
type realigner struct {
	mu        *ranked.Spin[poolMu]
	history   *history
	suspicion *suspicion // whether the pool is suspect
	heap      *heap
	events    *poolEvents
}

// markSuspect makes the pool suspect. failedGroup is the group that has failed, or nil during a
// realignment. If the pools of failedGroup have been realigned since, markSuspect does nothing.
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

// wasLiveBeforeFault reports whether a range lies in a block that was live when the pool became
// suspect and that has not been freed since. The caller must hold mu.
func (r *realigner) wasLiveBeforeFault(address uintptr, bytes int64) bool {
	return slices.ContainsFunc(r.suspicion.blocksBeforeFault, func(block alloc.View) bool {
		if !r.contains(block, address, bytes) {
			return false
		}

		_, err := r.heap.core.LiveBlock(block.Handle)
		isStillLive := err == nil
		return isStillLive
	})
}

// contains reports whether a range lies in a block whose segment is mapped. The caller must hold
// mu.
func (r *realigner) contains(block alloc.View, address uintptr, bytes int64) bool {
	segment := r.heap.segments.list[block.Segment]
	isMapped := segment != nil
	if !isMapped {
		return false
	}

	blockAddress := uintptr(segment.start) + uintptr(block.Offset)
	offset := address - blockAddress // a huge number for an address below the block
	return offset < uintptr(block.Size) && bytes <= block.Size-int64(offset)
}

// takeInventory lists the pool's segments and blocks, and ends the uses of blocks by earlier work.
// Call it when all work from before the mark is complete. It returns an error if the pool is
// closed, or if a block was used or freed after the mark.
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

// rebuild gives the pool the layout of the arrangement, restarts its history and returns the
// segments to unmap. inventories holds the pool's inventory on each group rank. If the pool is
// closed or has changed since takeInventory, rebuild returns nil and the pool stays suspect.
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

	// Other ranks may have mapped more segments. Give new segments the same ordinals on all ranks.
	for len(segments.list) < len(arrangement.Segments) {
		segments.list = append(segments.list, nil)
	}

	for _, s := range segments.mappedSegments() {
		s.stream = 0 // Rebuild has given all free memory to stream 0
		isArranged := arrangement.Segments[s.ordinal].Bytes > 0
		if !isArranged {
			s.withdraw() // groups register it no more
		}
	}

	clear(r.heap.uses.useEndEvents) // no deferred blocks are left: otherwise, Rebuild fails
	r.restartHistory(arrangement, inventories)
	r.suspicion.recordRealigned(g)
	var toUnmap []*segment
	for _, s := range unusedSegments {
		toUnmap = append(toUnmap, segments.list[s.Ordinal])
	}

	slices.SortFunc(toUnmap, compareOrdinals)
	return toUnmap
}

// restartHistory replaces the pool's history by one that is the same on all ranks. It begins at the
// highest of the positions at which the ranks can restart. The caller must hold mu.
func (r *realigner) restartHistory(arrangement alloc.Arrangement, inventories []poolInventory) {
	start := uint64(0)
	for _, inventory := range inventories {
		start = max(start, inventory.Start)
	}

	r.events.collect()
	r.heap.ledger.Restart(start, digestOfArrangement(arrangement, inventories[0]))
	r.events.recordRestart(start)
}

// digestOfArrangement returns a digest of the arrangement and of the live blocks in an inventory.
func digestOfArrangement(arrangement alloc.Arrangement, inventory poolInventory) uint64 {
	// The tags distinguish entries of different kinds with the same numbers.
	const segmentTag, keptRangeTag, liveBlockTag = 1, 2, 3
	digest := ledger.Empty
	for _, extent := range arrangement.Segments {
		digest = ledger.Mix(digest, uint64(extent.Bytes), segmentTag)
	}

	for _, r := range arrangement.KeptRanges { // memory that graphs use on some rank
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
