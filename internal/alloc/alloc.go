package alloc

import "fmt"

// Growth describes a segment that the caller must map and pass to AddSegment together with the
// Growth. The caller may increase Bytes if the backend only supports larger segments.
type Growth struct {
	Bytes    int64  // size of the segment; 0 if none is needed
	minBytes int64  // smallest size that fits the request
	home     uint32 // number of the index that gets the segment's free memory
	reserved bool   // whether only the requesting stream may use the memory
}

// Alloc places a block of size bytes for a stream. If the returned Growth is not empty, no block
// has been placed: the caller must map a segment, call AddSegment and repeat the Alloc, or call
// GrowFailed if no segment can be mapped.
//
// Before Alloc grows or fails, it frees the stream's deferred blocks, oldest first, until the
// request fits. If the request still does not fit, Alloc uses clean memory of other streams, that
// is, free memory that no queued work uses. The caller must handle Waits and Returned even if Alloc
// returns a Growth or an error.
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
	if stream != c.recent {
		c.selectStream(stream)
	}
	units, home := uint64(size+Unit-1)>>unitShift, c.current
	if !c.geometric {
		home += c.config.smallBit(int64(units) << unitShift)
	}
	x := c.homes[home]
	id := c.hot
	if id != 0 && c.servedByHot(units, home) {
		c.hot = 0
	} else {
		var found uint64
		if id, found = c.fit(x, units, home); id == 0 {
			c.lastAlloc = 0
			return c.allocSlowly(size, units, home)
		}
		id = c.cut(x, id, units, found)
	}
	c.lastAlloc, c.lastUnits, c.lastHome = id, units, home
	return c.makeLive(id, size), Growth{}, nil
}

func badSize(action string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: want 1 to %d", action, size, ErrSize, MaxSize)
}

// allocSlowly continues Alloc when none of the stream's free blocks fits.
func (c *Core) allocSlowly(size int64, units uint64, home uint32) (Block, Growth, error) {
	rounded := int64(units) << unitShift
	for s := &c.streams[home/2]; s.first != 0; {
		c.freeEarly(s.first)
		if id, found := c.fit(c.homes[home], units, home); id != 0 {
			return c.makeLive(c.cut(c.homes[home], id, units, found), size), Growth{}, nil
		}
	}
	if c.geometric {
		c.absorb()
		id, found := c.fit(c.homes[home], units, home)
		if id == 0 && c.takeClean(units, home, c.streams[home/2].number) {
			id, found = c.fit(c.homes[home], units, home)
		}
		if id != 0 {
			return c.makeLive(c.cut(c.homes[home], id, units, found), size), Growth{}, nil
		}
	}
	bytes := c.config.segmentSize(rounded, c.mapped)
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		bytes = c.config.remainingSegment(rounded, c.mapped)
	}
	if bytes == 0 {
		return Block{}, Growth{}, c.outOfMemory(size, home)
	}
	minBytes := min(bytes, roundUp(rounded, c.config.Granularity))
	return Block{}, Growth{Bytes: bytes, minBytes: minBytes, home: home}, nil
}

// Shrink halves the size of a segment that the backend could not map, but keeps it large enough for
// the request. It returns false if the segment already has the smallest possible size.
func (c *Core) Shrink(g *Growth) bool {
	if g.Bytes <= g.minBytes {
		return false
	}
	g.Bytes = max(g.minBytes, roundUp(g.Bytes/2, c.config.Granularity))
	return true
}

// GrowFailed returns the *OutOfMemoryError for a request whose segment could not be mapped. It
// does not change the Core, so the caller may free memory and repeat the request.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if size <= 0 || size > MaxSize {
		return badSize("allocating", size)
	}
	c.mergeHot()
	return c.outOfMemory(size, c.homeFor(stream, roundUp(size, Unit)))
}

// Reserve returns the Growth that lets a stream allocate blocks of the given total size without
// further growth. The Growth is empty if the stream already has a free block of that size. Other
// streams cannot use reserved memory. Under Stepped sizing, reserved memory serves only requests
// above 1 MiB. If Capacity leaves no room for a segment, Reserve uses clean memory of other
// streams.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room.
func (c *Core) Reserve(bytes int64, stream Stream) (Growth, error) {
	c.mergeHot()
	c.reports.clear()
	if bytes <= 0 || bytes > MaxSize {
		return Growth{}, badSize("reserving", bytes)
	}
	home := c.homeFor(stream, MaxSize)
	units := uint64(roundUp(bytes, Unit)) >> unitShift
	if c.reserve(units, home) {
		return Growth{}, nil
	}
	need := roundUp(bytes, c.config.Granularity)
	if limit := c.config.Capacity; limit > 0 && need > limit-c.mapped {
		if need = c.config.remainingSegment(roundUp(bytes, Unit), c.mapped); need == 0 {
			if c.ReserveClean(bytes, stream) {
				return Growth{}, nil
			}
			return Growth{}, c.outOfMemory(bytes, home)
		}
	}
	return Growth{Bytes: need, minBytes: need, home: home, reserved: true}, nil
}

// ReserveClean serves a Reserve from clean memory of other streams if no segment can be mapped.
// It reports whether there was enough clean memory.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.geometric {
		return false
	}
	c.mergeHot()
	units, home := uint64(roundUp(bytes, Unit))>>unitShift, c.homeFor(stream, MaxSize)
	c.absorb()
	return c.reserve(units, home) ||
		c.takeClean(units, home, c.streams[home/2].number) && c.reserve(units, home)
}

// Seize moves free memory of other streams to the requesting stream and reports whether it moved
// any. It is the last resort when no segment can be mapped, because work that is queued on the
// other streams may still use the memory. Only streams for which mayLose returns true lose
// memory. Reserved memory is never moved.
//
// Before the move, Seize calls wait once for each stream that loses memory. wait must make the
// requesting stream wait, on the device, for the work that is queued on that stream. This wait must
// precede the requesting stream's use of the next block that it allocates. If wait fails, Seize
// changes nothing and returns the error.
func (c *Core) Seize(
	size int64, stream Stream, mayLose func(Stream) bool, wait func(owner Stream) error,
) (taken bool, err error) {
	c.mergeHot()
	c.reports.clear()
	if !c.geometric || size <= 0 || size > MaxSize || c.crowded() {
		return false, nil
	}
	units, home := uint64(roundUp(size, Unit))>>unitShift, c.homeFor(stream, MaxSize)
	best := c.bestGap(units, func(h uint32) bool { return h == home || mayLose(c.nameOf(h)) })
	if best.region == 0 {
		return false, nil
	}
	losers := gapOwners(&c.layout, best, home)
	for _, h := range losers {
		if err := wait(c.nameOf(h)); err != nil {
			return false, err
		}
	}
	c.frees++ // QuietSince and Idle must not accept a Mark from before the move.
	c.transferGap(best, home, c.streams[home/2].number)
	c.absorb()
	return len(losers) > 0, nil
}
