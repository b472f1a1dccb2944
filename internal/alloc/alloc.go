package alloc

import "fmt"

// Growth is a request for a segment. The caller must map a segment of Bytes or more, set Bytes to
// the mapped size, and pass the Growth to AddSegment.
type Growth struct {
	Bytes      int64  // 0 if no segment is needed
	minBytes   int64  // smallest size that fits the request
	indexID    uint32 // index of free blocks that the segment will belong to
	isReserved bool   // whether the whole segment is kept for its stream; see Reserve
}

// Alloc places a block for a stream. If the returned Growth is not empty, Alloc has placed no
// block. In that case, the caller must map a segment, call AddSegment and repeat the Alloc. If the
// segment cannot be mapped, the caller gets its error from GrowFailed.
//
// Before Alloc requests a segment or fails, it frees the stream's deferred blocks, oldest first. It
// also takes clean memory of other streams, which is memory that their queued work cannot use. The
// caller must handle Waits and ReturnedBlocks even after an error.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room, ErrExhausted.
func (c *Core) Alloc(size int64, stream Stream) (Block, Growth, error) {
	if c.reports.hasEntries {
		c.reports.clear()
	}

	if uint64(size-1) >= uint64(MaxSize) { // true for size <= 0, too: size-1 wraps around
		return Block{}, Growth{}, newSizeError("allocating", size)
	}

	if c.firstUnusedBlock == 0 && len(c.blocks) >= maxBlocks {
		return Block{}, Growth{}, fmt.Errorf("allocating a block: %w", ErrExhausted)
	}

	if stream != c.selectedStream {
		c.selectStream(stream)
	}

	units := uint64(size+Unit-1) >> unitShift // rounded up
	indexID := c.selectedIndex
	if !c.isGeometric {
		indexID += c.config.smallIndexBit(int64(units) << unitShift)
	}

	index := c.indexes[indexID]
	// The block of the previous call, if that was a Free, is in no index yet; see last_freed.go.
	id := c.lastFreed
	if id != 0 && c.canReuseLastFreed(units, indexID) {
		c.lastFreed = 0
	} else {
		var foundUnits uint64
		id, foundUnits = c.findBlock(index, units, indexID)
		if id == 0 {
			c.lastAllocated = 0
			return c.allocFromOtherMemory(size, units, indexID)
		}

		id = c.takeFront(index, id, units, foundUnits)
	}

	c.lastAllocated, c.lastAllocatedUnits, c.lastAllocatedIndex = id, units, indexID
	return c.makeLive(id, size), Growth{}, nil
}

// newSizeError returns the error for an invalid size. action is the beginning of its text.
func newSizeError(action string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: want 1 to %d", action, size, ErrSize, MaxSize)
}

// allocFromOtherMemory continues an Alloc for which the stream has no free block. It tries, in this
// order: the stream's deferred blocks, clean memory of other streams, and a new segment.
func (c *Core) allocFromOtherMemory(
	size int64, units uint64, indexID uint32,
) (Block, Growth, error) {
	roundedBytes := int64(units) << unitShift
	s := &c.streams[indexID/2] // each stream has two indexes of free blocks
	for s.firstDeferred != 0 {
		c.freeAndReportWaits(s.firstDeferred) // changes firstDeferred to the next block
		id, foundUnits := c.findBlock(c.indexes[indexID], units, indexID)
		if id != 0 {
			id = c.takeFront(c.indexes[indexID], id, units, foundUnits)
			return c.makeLive(id, size), Growth{}, nil
		}
	}

	if c.isGeometric {
		c.mergeCleanRegions()
		id, foundUnits := c.findBlock(c.indexes[indexID], units, indexID)
		if id == 0 {
			isTaken := c.takeCleanMemory(units, indexID, c.numberOfIndex(indexID))
			if isTaken {
				id, foundUnits = c.findBlock(c.indexes[indexID], units, indexID)
			}
		}

		if id != 0 {
			id = c.takeFront(c.indexes[indexID], id, units, foundUnits)
			return c.makeLive(id, size), Growth{}, nil
		}
	}

	bytes := c.config.segmentSize(roundedBytes, c.mappedBytes)
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mappedBytes {
		bytes = c.config.remainingSegment(roundedBytes, c.mappedBytes)
	}

	if bytes == 0 {
		return Block{}, Growth{}, c.newOutOfMemoryError(size, indexID)
	}

	minBytes := min(bytes, roundUp(roundedBytes, c.config.Granularity))
	return Block{}, Growth{Bytes: bytes, minBytes: minBytes, indexID: indexID}, nil
}

// Shrink halves g.Bytes, but keeps it large enough for the request. It returns false if g.Bytes
// cannot become smaller. Callers use it if they cannot map as much as g.Bytes.
func (c *Core) Shrink(g *Growth) bool {
	if g.Bytes <= g.minBytes {
		return false
	}

	g.Bytes = max(g.minBytes, roundUp(g.Bytes/2, c.config.Granularity))
	return true
}

// GrowFailed returns the error for a request whose segment could not be mapped.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if size <= 0 || size > MaxSize {
		return newSizeError("allocating", size)
	}

	c.mergeLastFreed()
	return c.newOutOfMemoryError(size, c.indexFor(stream, roundUp(size, Unit)))
}

// Reserve keeps free memory for a stream, so that the stream can allocate blocks of the given total
// size without a new segment. If the returned Growth is not empty, the caller must map a segment
// and call AddSegment. If Capacity leaves no room for a segment, Reserve takes clean memory of
// other streams. With Stepped sizing, only requests above 1 MiB get reserved memory.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room.
func (c *Core) Reserve(bytes int64, stream Stream) (Growth, error) {
	c.mergeLastFreed()
	c.reports.clear()
	if bytes <= 0 || bytes > MaxSize {
		return Growth{}, newSizeError("reserving", bytes)
	}

	indexID := c.indexFor(stream, MaxSize) // MaxSize selects the index for large requests
	units := uint64(roundUp(bytes, Unit)) >> unitShift
	if c.tryReserve(units, indexID) {
		return Growth{}, nil
	}

	segmentBytes := roundUp(bytes, c.config.Granularity)
	if limit := c.config.Capacity; limit > 0 && segmentBytes > limit-c.mappedBytes {
		segmentBytes = c.config.remainingSegment(roundUp(bytes, Unit), c.mappedBytes)
		if segmentBytes == 0 {
			if c.ReserveClean(bytes, stream) {
				return Growth{}, nil
			}

			return Growth{}, c.newOutOfMemoryError(bytes, indexID)
		}
	}

	return Growth{
		Bytes:      segmentBytes,
		minBytes:   segmentBytes,
		indexID:    indexID,
		isReserved: true,
	}, nil
}

// ReserveClean is like Reserve, but uses only memory that the stream owns and clean memory of
// other streams. It reports whether there was enough.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.isGeometric {
		return false
	}

	c.mergeLastFreed()
	units := uint64(roundUp(bytes, Unit)) >> unitShift
	indexID := c.indexFor(stream, MaxSize) // MaxSize selects the index for large requests
	c.mergeCleanRegions()
	if c.tryReserve(units, indexID) {
		return true
	}

	if !c.takeCleanMemory(units, indexID, c.numberOfIndex(indexID)) {
		return false
	}

	return c.tryReserve(units, indexID)
}

// Seize gives a stream free memory of other streams, so that a request of the given size fits. The
// memory is not clean: queued work of its owners can still use it. Seize reports whether it has
// moved memory. It takes memory only from streams for which canTakeFrom returns true. It never
// takes reserved memory.
//
// Seize first calls wait for each owner of the memory. wait must make the requesting stream wait,
// on the device, for the owner's queued work. If wait fails, Seize moves no memory and returns the
// error.
func (c *Core) Seize(
	size int64, stream Stream, canTakeFrom func(Stream) bool, wait func(owner Stream) error,
) (isMoved bool, err error) {
	c.mergeLastFreed()
	c.reports.clear()
	isSizeValid := size > 0 && size <= MaxSize
	if !c.isGeometric || !isSizeValid || c.isNearlyFull() {
		return false, nil
	}

	units := uint64(roundUp(size, Unit)) >> unitShift
	indexID := c.indexFor(stream, MaxSize) // MaxSize selects the index for large requests
	found := c.smallestGap(units, func(regionIndex uint32) bool {
		return regionIndex == indexID || canTakeFrom(c.nameOfIndex(regionIndex))
	})
	if found.regionID == 0 {
		return false, nil
	}

	otherIndexes := c.otherIndexesOf(found, indexID)
	for _, other := range otherIndexes {
		if err := wait(c.nameOfIndex(other)); err != nil {
			return false, err
		}
	}

	c.freeCount++ // IsUnchangedSince and MarkIdle must reject older Marks
	c.transferGap(found, indexID, c.numberOfIndex(indexID))
	c.mergeCleanRegions()
	isMoved = len(otherIndexes) > 0 // the rest of the gap belonged to the stream before
	return isMoved, nil
}
