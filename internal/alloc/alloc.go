package alloc

import "fmt"

// Growth requests a segment. The caller maps one and passes both to AddSegment; it may raise Bytes
// if the backend only has larger segments.
type Growth struct {
	Bytes    int64  // size of the segment; 0 if none is needed
	least    int64  // size that the request needs
	home     uint32 // number of the index that gets the segment's free memory
	reserved bool   // other streams may not take its memory
}

// Alloc places size bytes for a stream. If the growth requests a segment, nothing was placed: the
// caller maps the segment, calls AddSegment (or GrowFailed) and then calls Alloc again.
//
// Before it grows or fails, Alloc frees deferred blocks of the stream, oldest first, until one
// fits, and then takes clean memory of other streams. Whatever it returns, Waits and Returned then
// list what the caller has to do.
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
		c.turn(stream)
	}
	units, home := uint64(size+Unit-1)>>unitShift, c.current
	if !c.plain {
		home += c.config.smallBit(int64(units) << unitShift)
	}
	x := c.homes[home]
	id := c.hot
	if id != 0 && c.again(units, home) {
		c.hot = 0
	} else {
		var found uint64
		if id, found = c.fit(x, units, home); id == 0 {
			c.last = 0
			return c.allocSlowly(size, units, home)
		}
		id = c.cut(x, id, units, found)
	}
	c.last, c.asked, c.askedOf = id, units, home
	return c.hand(id, size), Growth{}, nil
}

func badSize(doing string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: give 1 to %d", doing, size, ErrSize, MaxSize)
}

// allocSlowly continues Alloc if no free block of the stream fits.
func (c *Core) allocSlowly(size int64, units uint64, home uint32) (Block, Growth, error) {
	rounded := int64(units) << unitShift
	for s := &c.streams[home/2]; s.first != 0; {
		c.takeBack(s.first)
		if id, found := c.fit(c.homes[home], units, home); id != 0 {
			return c.hand(c.cut(c.homes[home], id, units, found), size), Growth{}, nil
		}
	}
	if c.plain {
		c.absorb()
		id, found := c.fit(c.homes[home], units, home)
		if id == 0 && c.take(units, home, c.streams[home/2].number) {
			id, found = c.fit(c.homes[home], units, home)
		}
		if id != 0 {
			return c.hand(c.cut(c.homes[home], id, units, found), size), Growth{}, nil
		}
	}
	bytes := c.config.segmentSize(rounded, c.mapped)
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		bytes = c.config.remains(rounded, c.mapped)
	}
	if bytes == 0 {
		return Block{}, Growth{}, c.outOfMemory(size, home)
	}
	least := min(bytes, roundUp(rounded, c.config.Granularity))
	return Block{}, Growth{Bytes: bytes, least: least, home: home}, nil
}

// Shrink halves the segment of a growth that the backend could not map, but not below what the
// request needs. It returns false if the segment is that small already.
func (c *Core) Shrink(g *Growth) bool {
	if g.Bytes <= g.least {
		return false
	}
	g.Bytes = max(g.least, roundUp(g.Bytes/2, c.config.Granularity))
	return true
}

// GrowFailed returns the *OutOfMemoryError for a request whose segment the backend could not map.
// It does not change the Core, so the request can be repeated after memory was freed.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if size <= 0 || size > MaxSize {
		return badSize("allocating", size)
	}
	c.mergeHot()
	return c.outOfMemory(size, c.homeFor(stream, roundUp(size, Unit)))
}

// Reserve returns the growth after which a stream can allocate blocks of the given total size
// without growing again. The growth is empty if one free block of the stream is that large. No
// other stream can take reserved memory; under Stepped sizing it serves only requests above 1 MiB.
// If Capacity leaves no room for a segment, Reserve reserves clean memory of other streams.
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
		if need = c.config.remains(roundUp(bytes, Unit), c.mapped); need == 0 {
			if c.ReserveClean(bytes, stream) {
				return Growth{}, nil
			}
			return Growth{}, c.outOfMemory(bytes, home)
		}
	}
	return Growth{Bytes: need, least: need, home: home, reserved: true}, nil
}

// ReserveClean reserves clean memory of other streams, for a Reserve whose segment cannot be
// mapped. It reports whether there was enough.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.plain {
		return false
	}
	c.mergeHot()
	units, home := uint64(roundUp(bytes, Unit))>>unitShift, c.homeFor(stream, MaxSize)
	c.absorb()
	return c.reserve(units, home) ||
		c.take(units, home, c.streams[home/2].number) && c.reserve(units, home)
}

// Seize gives a stream free memory of other streams for a request, although their work may still
// use it, and reports whether there was such memory. It is the last resort when no segment can be
// mapped. Before it moves memory it calls wait for each stream that loses some: the requesting
// stream must wait, on the device, for their queued work before it uses the block of the next
// Alloc. If wait fails, Seize changes nothing and returns the error. Only streams for which may
// returns true lose memory, and reserved memory is never taken.
func (c *Core) Seize(
	size int64, stream Stream, may func(Stream) bool, wait func(owner Stream) error,
) (taken bool, err error) {
	c.mergeHot()
	c.reports.clear()
	if !c.plain || size <= 0 || size > MaxSize || c.crowded() {
		return false, nil
	}
	units, home := uint64(roundUp(size, Unit))>>unitShift, c.homeFor(stream, MaxSize)
	best := c.bestGap(units, func(h uint32) bool { return h == home || may(c.nameOf(h)) })
	if best.region == 0 {
		return false, nil
	}
	losers := holders(&c.layout, best, home)
	for _, h := range losers {
		if err := wait(c.nameOf(h)); err != nil {
			return false, err
		}
	}
	c.ended++ // Earlier Marks do not cover the wait.
	c.move(best, home, c.streams[home/2].number)
	c.absorb()
	return len(losers) > 0, nil
}
