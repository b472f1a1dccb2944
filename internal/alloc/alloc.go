package alloc

import "fmt"

// Growth describes a segment that the caller must map and pass to AddSegment. The caller may
// increase Bytes.
type Growth struct {
	Bytes      int64  // 0 if no segment is needed
	minBytes   int64  // smallest size that fits the request
	indexID    uint32 // index that will serve requests from the segment
	isReserved bool   // whether the whole segment becomes reserved
}

// Alloc places a block for a stream. If the returned Growth is not empty, Alloc has placed no
// block. The caller must then map a segment, call AddSegment and repeat the Alloc. If it cannot
// map a segment, it calls GrowFailed instead.
//
// Before it requests a segment or fails, Alloc frees the stream's deferred blocks, oldest first,
// and takes clean memory of other streams. The caller must handle Waits and ReturnedBlocks even
// after an error.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room, ErrExhausted.
func (c *Core) Alloc(size int64, stream Stream) (Block, Growth, error) {
	if c.reports.hasEntries {
		c.reports.clear()
	}
	if uint64(size-1) >= uint64(MaxSize) { // also if size is not positive
		return Block{}, Growth{}, newSizeError("allocating", size)
	}
	if c.firstUnusedBlock == 0 && len(c.blocks) >= maxBlocks {
		return Block{}, Growth{}, fmt.Errorf("allocating a block: %w", ErrExhausted)
	}
	if stream != c.selectedStream {
		c.selectStream(stream)
	}
	units, indexID := uint64(size+Unit-1)>>unitShift, c.selectedIndex
	if !c.isGeometric {
		indexID += c.config.smallIndexBit(int64(units) << unitShift)
	}
	index := c.indexes[indexID]
	id := c.lastFreed
	if id != 0 && c.canReuseLastFreed(units, indexID) {
		c.lastFreed = 0
	} else {
		var foundUnits uint64
		if id, foundUnits = c.findBlock(index, units, indexID); id == 0 {
			c.lastAllocated = 0
			return c.allocFromOtherMemory(size, units, indexID)
		}
		id = c.takeFront(index, id, units, foundUnits)
	}
	c.lastAllocated, c.lastAllocatedUnits, c.lastAllocatedIndex = id, units, indexID
	return c.makeLive(id, size), Growth{}, nil
}

func newSizeError(action string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: want 1 to %d", action, size, ErrSize, MaxSize)
}

// allocFromOtherMemory performs an Alloc for which the stream has no free block: it frees deferred
// blocks, takes clean memory of other streams, or requests a segment.
func (c *Core) allocFromOtherMemory(
	size int64, units uint64, indexID uint32,
) (Block, Growth, error) {
	roundedBytes := int64(units) << unitShift
	for s := &c.streams[indexID/2]; s.firstDeferred != 0; {
		c.freeAndReportWaits(s.firstDeferred)
		if id, foundUnits := c.findBlock(c.indexes[indexID], units, indexID); id != 0 {
			id = c.takeFront(c.indexes[indexID], id, units, foundUnits)
			return c.makeLive(id, size), Growth{}, nil
		}
	}
	if c.isGeometric {
		c.mergeCleanRegions()
		id, foundUnits := c.findBlock(c.indexes[indexID], units, indexID)
		if id == 0 && c.takeCleanMemory(units, indexID, c.numberOfIndex(indexID)) {
			id, foundUnits = c.findBlock(c.indexes[indexID], units, indexID)
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
// cannot become smaller.
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

// Reserve keeps free memory for a stream, so that the stream can allocate blocks of the given
// total size without a new segment. If the returned Growth is not empty, the caller must map a
// segment and call AddSegment. If Capacity leaves no room for a segment, Reserve takes clean
// memory of other streams. With Stepped sizing, reserved memory serves requests above 1 MiB.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room.
func (c *Core) Reserve(bytes int64, stream Stream) (Growth, error) {
	c.mergeLastFreed()
	c.reports.clear()
	if bytes <= 0 || bytes > MaxSize {
		return Growth{}, newSizeError("reserving", bytes)
	}
	indexID := c.indexFor(stream, MaxSize)
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
		Bytes: segmentBytes, minBytes: segmentBytes, indexID: indexID, isReserved: true,
	}, nil
}

// ReserveClean is like Reserve, but uses only memory that the stream owns and clean memory of
// other streams. It reports whether there was enough.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.isGeometric {
		return false
	}
	c.mergeLastFreed()
	units, indexID := uint64(roundUp(bytes, Unit))>>unitShift, c.indexFor(stream, MaxSize)
	c.mergeCleanRegions()
	if c.tryReserve(units, indexID) {
		return true
	}
	return c.takeCleanMemory(units, indexID, c.numberOfIndex(indexID)) &&
		c.tryReserve(units, indexID)
}

// Seize gives a stream free memory of other streams that their queued work can still use, so that
// a request of the given size fits. It reports whether it has moved memory. Seize takes memory
// only from streams for which canTakeFrom returns true, and never takes reserved memory.
//
// Seize first calls wait for each owner of the memory. wait must make the requesting stream wait,
// on the device, for the owner's queued work. If wait fails, Seize changes nothing and returns the
// error.
func (c *Core) Seize(
	size int64, stream Stream, canTakeFrom func(Stream) bool, wait func(owner Stream) error,
) (isMoved bool, err error) {
	c.mergeLastFreed()
	c.reports.clear()
	if !c.isGeometric || size <= 0 || size > MaxSize || c.isNearlyFull() {
		return false, nil
	}
	units, indexID := uint64(roundUp(size, Unit))>>unitShift, c.indexFor(stream, MaxSize)
	gap := c.smallestGap(units, func(owner uint32) bool {
		return owner == indexID || canTakeFrom(c.nameOfIndex(owner))
	})
	if gap.regionID == 0 {
		return false, nil
	}
	owners := gapOwners(&c.layout, gap, indexID)
	for _, owner := range owners {
		if err := wait(c.nameOfIndex(owner)); err != nil {
			return false, err
		}
	}
	c.freeCount++ // IsUnchangedSince and MarkIdle must reject older Marks
	c.transferGap(gap, indexID, c.numberOfIndex(indexID))
	c.mergeCleanRegions()
	return len(owners) > 0, nil
}
