package alloc

import "fmt"

// Growth describes a segment that the caller must map and pass to AddSegment. The caller may
// increase Bytes if the backend only supports larger segments.
type Growth struct {
	Bytes    int64 // 0 if no segment is needed
	minBytes int64 // smallest size that fits the request
	indexID  uint32
	reserved bool // whether only the requesting stream may use the memory
}

// Alloc places a block of size bytes for a stream. If the returned Growth is not empty, no block
// has been placed: the caller must map a segment, call AddSegment and repeat the Alloc, or call
// GrowFailed if no segment can be mapped.
//
// Before Alloc grows or fails, it frees the stream's deferred blocks, oldest first, and then tries
// clean memory of other streams. The caller must handle Waits and Returned even after an error.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room, ErrExhausted.
func (c *Core) Alloc(size int64, stream Stream) (Block, Growth, error) {
	if c.reports.filled {
		c.reports.clear()
	}
	if uint64(size-1) >= uint64(MaxSize) {
		return Block{}, Growth{}, badSize("allocating", size)
	}
	if c.vacant == 0 && len(c.blocks) >= maxBlocks {
		return Block{}, Growth{}, fmt.Errorf("allocating a block: %w", ErrExhausted)
	}
	if stream != c.recentStream {
		c.selectStream(stream)
	}
	units, indexID := uint64(size+Unit-1)>>unitShift, c.recentIndex
	if !c.geometric {
		indexID += c.config.smallBit(int64(units) << unitShift)
	}
	index := c.indexes[indexID]
	id := c.hot
	if id != 0 && c.servedByHot(units, indexID) {
		c.hot = 0
	} else {
		var found uint64
		if id, found = c.fit(index, units, indexID); id == 0 {
			c.lastAlloc = 0
			return c.allocSlowly(size, units, indexID)
		}
		id = c.takeFront(index, id, units, found)
	}
	c.lastAlloc, c.lastUnits, c.lastIndex = id, units, indexID
	return c.makeLive(id, size), Growth{}, nil
}

func badSize(action string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: want 1 to %d", action, size, ErrSize, MaxSize)
}

func (c *Core) allocSlowly(size int64, units uint64, indexID uint32) (Block, Growth, error) {
	rounded := int64(units) << unitShift
	for s := &c.streams[indexID/2]; s.firstDeferred != 0; {
		c.freeEarly(s.firstDeferred)
		if id, found := c.fit(c.indexes[indexID], units, indexID); id != 0 {
			id = c.takeFront(c.indexes[indexID], id, units, found)
			return c.makeLive(id, size), Growth{}, nil
		}
	}
	if c.geometric {
		c.joinClean()
		id, found := c.fit(c.indexes[indexID], units, indexID)
		if id == 0 && c.takeClean(units, indexID, c.streams[indexID/2].number) {
			id, found = c.fit(c.indexes[indexID], units, indexID)
		}
		if id != 0 {
			id = c.takeFront(c.indexes[indexID], id, units, found)
			return c.makeLive(id, size), Growth{}, nil
		}
	}
	bytes := c.config.segmentSize(rounded, c.mapped)
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		bytes = c.config.remainingSegment(rounded, c.mapped)
	}
	if bytes == 0 {
		return Block{}, Growth{}, c.outOfMemory(size, indexID)
	}
	minBytes := min(bytes, roundUp(rounded, c.config.Granularity))
	return Block{}, Growth{Bytes: bytes, minBytes: minBytes, indexID: indexID}, nil
}

// Shrink halves the size of a segment that the backend could not map, but keeps it
// large enough for the request. It returns false if the segment already has the smallest size.
func (c *Core) Shrink(g *Growth) bool {
	if g.Bytes <= g.minBytes {
		return false
	}
	g.Bytes = max(g.minBytes, roundUp(g.Bytes/2, c.config.Granularity))
	return true
}

// GrowFailed returns the *OutOfMemoryError for a request whose segment could not be mapped. It does
// not change the Core.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if size <= 0 || size > MaxSize {
		return badSize("allocating", size)
	}
	c.mergeHot()
	return c.outOfMemory(size, c.indexFor(stream, roundUp(size, Unit)))
}

// Reserve returns the Growth that lets a stream allocate blocks of the given total size without
// further growth. The Growth is empty if the stream can already do so. If Capacity leaves no room
// for a segment, Reserve takes clean memory of other streams. Other streams cannot use reserved
// memory. Under Stepped sizing, it serves only requests above 1 MiB.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room.
func (c *Core) Reserve(bytes int64, stream Stream) (Growth, error) {
	c.mergeHot()
	c.reports.clear()
	if bytes <= 0 || bytes > MaxSize {
		return Growth{}, badSize("reserving", bytes)
	}
	indexID := c.indexFor(stream, MaxSize)
	units := uint64(roundUp(bytes, Unit)) >> unitShift
	if c.reserve(units, indexID) {
		return Growth{}, nil
	}
	need := roundUp(bytes, c.config.Granularity)
	if limit := c.config.Capacity; limit > 0 && need > limit-c.mapped {
		if need = c.config.remainingSegment(roundUp(bytes, Unit), c.mapped); need == 0 {
			if c.ReserveClean(bytes, stream) {
				return Growth{}, nil
			}
			return Growth{}, c.outOfMemory(bytes, indexID)
		}
	}
	return Growth{Bytes: need, minBytes: need, indexID: indexID, reserved: true}, nil
}

// ReserveClean reserves clean memory of other streams, and reports whether there was enough.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.geometric {
		return false
	}
	c.mergeHot()
	units, indexID := uint64(roundUp(bytes, Unit))>>unitShift, c.indexFor(stream, MaxSize)
	c.joinClean()
	return c.reserve(units, indexID) ||
		c.takeClean(units, indexID, c.streams[indexID/2].number) && c.reserve(units, indexID)
}

// Seize moves free memory of other streams to the requesting stream and reports whether it moved
// any. It is the last resort, because queued work may still use the memory. Only streams for which
// mayLose returns true lose memory. Reserved memory is never moved.
//
// Seize first calls wait for each stream that loses memory. wait must make the requesting stream
// wait, on the device, for the work queued on that stream, before the requesting stream uses its
// next block. If wait fails, Seize changes nothing and returns the error.
func (c *Core) Seize(
	size int64, stream Stream, mayLose func(Stream) bool, wait func(owner Stream) error,
) (taken bool, err error) {
	c.mergeHot()
	c.reports.clear()
	if !c.geometric || size <= 0 || size > MaxSize || c.nearlyFull() {
		return false, nil
	}
	units, indexID := uint64(roundUp(size, Unit))>>unitShift, c.indexFor(stream, MaxSize)
	best := c.bestGap(units, func(h uint32) bool { return h == indexID || mayLose(c.nameOf(h)) })
	if best.region == 0 {
		return false, nil
	}
	losers := gapOwners(&c.layout, best, indexID)
	for _, h := range losers {
		if err := wait(c.nameOf(h)); err != nil {
			return false, err
		}
	}
	c.frees++ // QuietSince and Idle must not accept a Mark from before the move.
	c.transferGap(best, indexID, c.streams[indexID/2].number)
	c.joinClean()
	return len(losers) > 0, nil
}
