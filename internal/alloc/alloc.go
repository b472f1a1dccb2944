package alloc

import "fmt"

// Alloc, Reserve and Seize find free memory for a stream: a queue of work for the device. The
// memory consists of segments, which the caller maps. Streams own parts of them. If a program
// requests a block for stream 1, Alloc takes it from the first of these that is large enough:
//
//  1. a free block of stream 1.
//  2. a deferred block of stream 1. The program has freed it, but earlier work of stream 2 can
//     still use it. Alloc makes it free, and reports that stream 1 must wait for stream 2.
//  3. clean memory of another stream: free memory that no earlier work can use.
//  4. a new segment. Alloc returns a Growth to request it from the caller.
//
// If the caller cannot map a segment, it can use Seize. This takes free memory of other streams
// that is not clean, and makes stream 1 wait for their work. Neither step 3 nor Seize takes
// reserved memory: free memory that Reserve keeps for its stream.
//
// The free blocks of a stream are in an index. With Geometric sizing, a stream has one index for
// all requests. Stepped sizing follows PyTorch. It has a second index, for requests up to 1 MiB,
// and leaves out step 3 and Seize. takeBlock, takeDeferred and takeClean get a request's size in
// units of 512 bytes and the id of the index that serves it. They return the id of a block, or 0.

// Growth is a request for a segment. The caller must map a segment of Bytes or more, set Bytes to
// the mapped size, and pass the Growth to AddSegment.
type Growth struct {
	Bytes      int64  // 0 if no segment is needed
	minBytes   int64  // smallest size that fits the request
	indexID    uint32 // index of the stream that will own the segment
	isReserved bool   // whether the whole segment is reserved for the stream
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

// isValidSize reports whether a request may have this size.
func isValidSize(size int64) bool { return size > 0 && size <= MaxSize }

// newSizeError returns the error for an invalid size. action is the beginning of its text.
func newSizeError(action string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: want 1 to %d", action, size, ErrSize, MaxSize)
}

// toUnits converts a size in bytes to units, rounded up.
func toUnits(bytes int64) uint64 { return uint64(bytes+Unit-1) >> unitShift }

// Alloc places a block for a stream. If the returned Growth is not empty, it has placed none: the
// caller must map a segment, call AddSegment and repeat the Alloc. If the segment cannot be mapped,
// the caller gets an error for the request from GrowFailed. Even after an error of Alloc, the
// caller must handle the reports of step 2: Waits, and the now free blocks in ReturnedBlocks.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room, ErrExhausted.
func (c *Core) Alloc(size int64, stream Stream) (Block, Growth, error) {
	// Alloc must be fast. Instead of calling selectIndex and takeBlock, it contains their code.
	if c.reports.hasEntries {
		c.reports.clear()
	}

	if !isValidSize(size) {
		return Block{}, Growth{}, newSizeError("allocating", size)
	}

	if !c.hasBlockID() {
		return Block{}, Growth{}, fmt.Errorf("allocating a block: %w", ErrExhausted)
	}

	if stream != c.selectedStream {
		c.selectStream(stream) // sets selectedIndex to the stream's first index
	}

	units := toUnits(size)
	indexID := c.selectedIndex
	if !c.isGeometric {
		indexID += c.config.smallIndexBit(roundUp(size, Unit)) // 1 selects the second index
	}

	// If the previous call was a Free, its block is in no index yet. It may suit this request.
	id := c.lastFreed
	if id != 0 && c.canReuseLastFreed(units, indexID) {
		c.lastFreed = 0
	} else {
		index := c.indexes[indexID]
		var foundUnits uint64
		id, foundUnits = c.findBlock(index, units, indexID)
		if id == 0 {
			c.lastAllocated = 0 // none that a Free and an equal Alloc could reuse
			return c.allocFromOtherMemory(size, indexID)
		}

		id = c.takeFront(index, id, units, foundUnits)
	}

	c.rememberAllocated(id, units, indexID)
	return c.makeLive(id, size), Growth{}, nil
}

// hasBlockID reports whether there is an id for one more block.
func (c *Core) hasBlockID() bool { return c.firstUnusedBlock != 0 || len(c.blocks) < maxIDs }

// rememberAllocated records the block of an Alloc. If the next call frees the block, which no other
// stream has used, and the call after that makes the same request, canReuseLastFreed returns true.
func (c *Core) rememberAllocated(id uint32, units uint64, indexID uint32) {
	c.lastAllocated, c.lastAllocatedUnits, c.lastAllocatedIndex = id, units, indexID
}

// allocFromOtherMemory performs steps 2 to 4 of Alloc.
func (c *Core) allocFromOtherMemory(size int64, indexID uint32) (Block, Growth, error) {
	units := toUnits(size)
	id := takeDeferred(c, units, indexID)
	if id == 0 && c.isGeometric {
		id = takeClean(c, units, indexID)
	}

	if id != 0 {
		return c.makeLive(id, size), Growth{}, nil
	}

	requestBytes := roundUp(size, Unit)
	wantedBytes := c.config.segmentSize(requestBytes, c.mappedBytes)
	segmentBytes := c.config.limitSegment(wantedBytes, requestBytes, c.mappedBytes)
	if segmentBytes == 0 {
		return Block{}, Growth{}, c.newOutOfMemoryError(size, indexID)
	}

	// With Stepped sizing, segmentBytes can be less than Granularity.
	minBytes := min(segmentBytes, roundUp(requestBytes, c.config.Granularity))
	return Block{}, Growth{Bytes: segmentBytes, minBytes: minBytes, indexID: indexID}, nil
}

// takeBlock takes a block out of an index. If the best free block is larger than requested, the
// rest of it stays free, unless Stepped sizing does not permit the split.
func (c *Core) takeBlock(units uint64, indexID uint32) (id uint32) {
	index := c.indexes[indexID]
	id, foundUnits := c.findBlock(index, units, indexID)
	if id == 0 {
		return 0
	}

	return c.takeFront(index, id, units, foundUnits)
}

// takeDeferred makes deferred blocks of the stream free, oldest first, until it can take a block.
func takeDeferred(c *Core, units uint64, indexID uint32) (id uint32) {
	owner := &c.streams[streamIDOf(indexID)]
	for owner.firstDeferred != 0 {
		c.freeAndReportWaits(owner.firstDeferred) // moves firstDeferred to the next block
		id = c.takeBlock(units, indexID)
		if id != 0 {
			return id
		}
	}

	return 0
}

// takeClean gives clean memory of other streams to this stream, and takes a block from it.
func takeClean(c *Core, units uint64, indexID uint32) (id uint32) {
	c.mergeCleanRegions() // can make free blocks of the stream larger
	id = c.takeBlock(units, indexID)
	if id != 0 {
		return id
	}

	isGiven := c.takeCleanMemory(units, indexID, c.numberOfIndex(indexID))
	if !isGiven {
		return 0
	}

	return c.takeBlock(units, indexID)
}

// GrowFailed returns the error for a request whose segment could not be mapped.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if !isValidSize(size) {
		return newSizeError("allocating", size)
	}

	c.mergeLastFreed()
	return c.newOutOfMemoryError(size, c.selectIndex(stream, roundUp(size, Unit)))
}

// Reserve reserves memory for blocks of a stream with the given total size. If the returned Growth
// is not empty, the caller must map a segment and call AddSegment. If Capacity leaves no room for a
// segment, Reserve uses clean memory of other streams. With Stepped sizing, only blocks above 1 MiB
// can use the reserved memory.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room.
func (c *Core) Reserve(bytes int64, stream Stream) (Growth, error) {
	c.mergeLastFreed()
	c.reports.clear()
	if !isValidSize(bytes) {
		return Growth{}, newSizeError("reserving", bytes)
	}

	units := toUnits(bytes)
	indexID := largeIndexOf(c, stream)
	if c.tryReserve(units, indexID) {
		return Growth{}, nil
	}

	wantedBytes := roundUp(bytes, c.config.Granularity)
	segmentBytes := c.config.limitSegment(wantedBytes, roundUp(bytes, Unit), c.mappedBytes)
	switch {
	case segmentBytes > 0:
		growth := Growth{Bytes: segmentBytes, minBytes: segmentBytes, indexID: indexID}
		growth.isReserved = true
		return growth, nil
	case c.ReserveClean(bytes, stream):
		return Growth{}, nil
	}

	return Growth{}, c.newOutOfMemoryError(bytes, indexID)
}

// largeIndexOf returns the index of a stream that serves the largest requests.
func largeIndexOf(c *Core, stream Stream) uint32 { return c.selectIndex(stream, MaxSize) }

// ReserveClean is like Reserve, but uses only free memory of the stream and clean memory of other
// streams. It reports whether there was enough.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.isGeometric {
		return false
	}

	c.mergeLastFreed()
	units := toUnits(bytes)
	indexID := largeIndexOf(c, stream)
	c.mergeCleanRegions() // can make free blocks of the stream larger
	if c.tryReserve(units, indexID) {
		return true
	}

	isGiven := c.takeCleanMemory(units, indexID, c.numberOfIndex(indexID))
	return isGiven && c.tryReserve(units, indexID)
}

// Seize gives a stream free memory of other streams, enough for a request of the given size. It
// takes memory only from streams for which canTakeFrom returns true. It reports whether it has
// moved memory. If Sizing is Stepped, it never does.
//
// Seize first calls wait for each owner of the memory. wait must make the requesting stream wait,
// on the device, for the owner's earlier work. If wait fails, Seize only returns its error.
func (c *Core) Seize(
	size int64, stream Stream, canTakeFrom func(Stream) bool, wait func(owner Stream) error,
) (isMoved bool, err error) {
	c.mergeLastFreed()
	c.reports.clear()
	if !isValidSize(size) || !c.isGeometric || c.isNearlyFull() {
		return false, nil
	}

	indexID := largeIndexOf(c, stream)
	// A gap is a range of free memory in a segment. Parts of it can belong to different streams.
	gap := c.smallestGap(toUnits(size), func(candidateID uint32) bool {
		isOwn := candidateID == indexID
		return isOwn || canTakeFrom(c.nameOfIndex(candidateID))
	})
	isFound := gap.regionID != 0
	if !isFound {
		return false, nil
	}

	otherIndexes := c.otherIndexesOf(gap, indexID)
	for _, otherID := range otherIndexes {
		if err := wait(c.nameOfIndex(otherID)); err != nil {
			return false, err
		}
	}

	invalidateMarks(c)
	c.transferGap(gap, indexID, c.numberOfIndex(indexID))
	c.mergeCleanRegions()
	isMoved = len(otherIndexes) > 0 // otherwise, the whole gap belonged to the stream before
	return isMoved, nil
}

// invalidateMarks makes IsUnchangedSince and MarkIdle reject earlier Marks. Otherwise, a MarkIdle
// for stream 1 could make the moved memory clean, although work of stream 2 still uses it.
func invalidateMarks(c *Core) { c.freeCount++ }
