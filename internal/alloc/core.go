package alloc

import "fmt"

// Core decides where blocks of one arena lie. It holds no lock, does no I/O and knows no clock:
// the caller serialises calls, maps segments and records events. Make one with New.
//
// Every call that changes a Core is part of its history. Under the Creation policy, Cores with
// equal Configs and equal histories (segment addresses aside) place every block alike.
type Core struct {
	config Config
	plain  bool // requests are rounded to Unit and all that remains of a block is split off
	layout
	streams    []stream
	numbers    map[Stream]uint32 // index of each stream's record
	asking     uint32            // streams but 0 that have asked for memory
	recent     Stream            // stream of the latest request
	current    uint32            // its large index
	uses       []use             // by number; 0 is no use
	spareUse   uint32            // first spare use
	marked     uint64            // Use calls so far
	deferrals  uint64            // number of the latest deferral
	ended      uint64            // blocks that became free so far
	owner      uint32            // see Owner
	tail       uint64            // first unused arena position, in units
	last       uint32            // block of the latest call if that was an Alloc, else 0; see keep
	asked      uint64            // units of that Alloc
	askedOf    uint32            // index of that Alloc
	hot        uint32            // block kept apart after its Free, or 0; see keep
	hotOf      uint32            // its index
	undone     bool              // that Free undid the call before it
	neighbours neighbours        // its neighbours
	owners     []uint32          // of deferred blocks, for Synced
	keeps      bool              // see Keeps
	whole      map[uint32]Range  // extents of parked blocks that a rebuild has cut
	mapped     int64
	counts     counts
	reports    reports
}

// New returns an empty Core, or an ErrConfig.
func New(config Config) (*Core, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.ensureDefaults()
	c := &Core{
		config: config,
		plain:  config.Sizing == Geometric,
		layout: layout{
			freeBlocks: freeBlocks{
				slab:    slab{blocks: make([]block, 1, 64), sides: make([]side, 1, 64)},
				keys:    make([]uint64, 1, 64),
				classes: make([]class, 1, 64),
			},
			regions: make([]region, 1),
		},
		uses:    make([]use, 1),
		numbers: map[Stream]uint32{},
	}
	c.turn(0)
	return c, nil
}

// Growth asks for a segment. The caller maps one and hands both to AddSegment; it may raise
// Bytes if the backend has only larger ones.
type Growth struct {
	Bytes    int64  // size of the segment; 0 means that none is wanted
	least    int64  // what the request needs
	home     uint32 // number of the index that gets the segment's free memory
	reserved bool   // other streams may not take its memory
}

// Alloc places size bytes for a stream. If the growth asks for a segment, nothing was placed:
// the caller maps it, calls AddSegment (or GrowFailed) and then Alloc again.
//
// Before it grows or fails, Alloc takes back deferred blocks of the stream, oldest first, until
// one fits, and then takes clean memory of other streams. Whatever the outcome, Waits and Returned
// then say what the caller has to do.
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
			return c.press(size, units, home)
		}
		id = c.cut(x, id, units, found)
	}
	c.last, c.asked, c.askedOf = id, units, home
	return c.hand(id, size), Growth{}, nil
}

// hand gives a block that is in no index to the caller.
func (c *Core) hand(id uint32, size int64) Block {
	b := &c.blocks[id]
	b.rest = uint64(Live) | uint64(size)<<askedShift
	r := c.regionOf(b)
	v := r.view(b, id)
	c.owner = r.owner
	if end := b.position() + b.units(); end > r.high {
		r.high = end
	}
	c.counts.live++
	c.counts.requested += size
	used := c.counts.used + v.Size
	c.counts.used = used
	if used > c.counts.peak {
		c.counts.peak = used
	}
	return v
}

func badSize(doing string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w: give 1 to %d", doing, size, ErrSize, MaxSize)
}

// homeFor returns the number of the index that serves a stream and size.
func (c *Core) homeFor(stream Stream, rounded int64) uint32 {
	if stream != c.recent {
		c.turn(stream)
	}
	return c.current + c.config.smallBit(rounded)
}

// turn makes a stream that asks for memory the one that is found at once.
func (c *Core) turn(stream Stream) {
	n := c.record(stream)
	if s := &c.streams[n]; stream != 0 && s.number == 0 {
		c.asking++
		s.number = c.asking
	}
	c.recent, c.current = stream, n*2
}

// fit returns the free block of an index that serves a request, and how many units it has; 0 and 0
// if there is none. A block that is kept apart is merged. If it is of the same index, fit searches
// first and merges then, so that neither has to wait for the other, and searches again in the rare
// case that what was merged is part of what was found, or fits as well or better.
func (c *Core) fit(x *index, units uint64, home uint32) (id uint32, found uint64) {
	if c.hot != 0 && c.hotOf != home {
		c.cool(c.homes[c.hotOf])
	}
	if x == nil {
		return 0, 0
	}
	id, found = c.find(x, units)
	if c.hot != 0 {
		merged := c.cool(x)
		b := &c.blocks[id]
		if merged-units <= found-units || b.units() != found || b.state() != Free {
			id, found = c.find(x, units)
		}
	}
	return id, found
}

// cut takes what a request needs off the front of a free block of so many units, whose record
// keeps the rest, or all of it if it must not be split.
func (c *Core) cut(x *index, id uint32, units, found uint64) uint32 {
	rest := found - units
	if rest == 0 || !c.plain && !c.config.splits(int64(units)<<unitShift, int64(rest)<<unitShift) {
		c.remove(x, &c.blocks[id], found)
		return id
	}
	front := c.grab()
	b, f := &c.blocks[id], &c.blocks[front]
	prev, place := b.prev(), b.place
	f.place, f.span, f.next = place, units<<idBits, id
	c.follow(f, prev, front)
	b.setPrev(front)
	place += units << idBits
	if found > exactBins && c.stretch(x, b, id, place, rest) {
		return front
	}
	c.remove(x, b, found)
	b.moveTo(place, rest)
	c.insert(x, b, id, rest)
	return front
}

// press is the slow half of Alloc: nothing fits at once.
func (c *Core) press(size int64, units uint64, home uint32) (Block, Growth, error) {
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

// Shrink halves the segment of a growth that the backend cannot map, down to what the request
// needs, and reports false where it asks for no more than that.
func (c *Core) Shrink(g *Growth) bool {
	if g.Bytes <= g.least {
		return false
	}
	g.Bytes = max(g.least, roundUp(g.Bytes/2, c.config.Granularity))
	return true
}

// GrowFailed returns the *OutOfMemoryError for a request whose segment the backend could not
// map. It changes nothing, so the request may be tried again after memory was freed.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if size <= 0 || size > MaxSize {
		return badSize("allocating", size)
	}
	c.mergeHot()
	return c.outOfMemory(size, c.homeFor(stream, roundUp(size, Unit)))
}

func (c *Core) outOfMemory(size int64, home uint32) error {
	e := &OutOfMemoryError{Requested: size, Capacity: c.config.Capacity}
	for _, h := range [2]uint32{home &^ 1, home | 1} {
		if x := c.homes[h]; x != nil {
			e.Free += c.freeBytes(x)
			e.LargestFree = max(e.LargestFree, c.largest(x))
		}
	}
	return e
}

// Reserve asks for the segment after which so many more bytes can be placed for a stream
// without growing: any requests whose block sizes sum to at most bytes. It asks for nothing if
// one free block of the stream is that large already. No other stream gets any of that memory;
// under Stepped sizing it serves requests above 1 MiB only. Where Capacity leaves no room for a
// segment, clean memory of other streams is reserved.
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
	if hold(c, units, home) {
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

// hold reserves the front of a free block that serves a request, if there is one.
func hold(c *Core, units uint64, home uint32) bool {
	id, _ := c.fit(c.homes[home], units, home)
	if id == 0 {
		return false
	}
	b := &c.blocks[id]
	c.regionOf(b).reserve(b.position() + units)
	return true
}

// ReserveClean reserves clean memory of other streams, and reports whether there was enough: for a
// Reserve whose segment cannot be mapped.
func (c *Core) ReserveClean(bytes int64, stream Stream) bool {
	if !c.plain {
		return false
	}
	c.mergeHot()
	units, home := uint64(roundUp(bytes, Unit))>>unitShift, c.homeFor(stream, MaxSize)
	c.absorb()
	return hold(c, units, home) ||
		c.take(units, home, c.streams[home/2].number) && hold(c, units, home)
}

// Seize gives a stream free memory of other streams for a request, although their work may still
// use it, and reports whether there was such memory. It is the last resort when nothing more can be
// mapped. Before it moves any memory it calls wait for each stream that loses some: the stream must
// wait, on the device, for the queued work of these before it uses the block of the next Alloc. If
// wait fails, Seize changes nothing and returns its error. Only streams for which may returns true
// lose memory, and reserved memory is never taken.
func (c *Core) Seize(
	size int64, stream Stream, may func(Stream) bool, wait func(owner Stream) error,
) (taken bool, err error) {
	c.mergeHot()
	c.reports.clear()
	if !c.plain || size <= 0 || size > MaxSize || c.crowded() {
		return false, nil
	}
	units, home := uint64(roundUp(size, Unit))>>unitShift, c.homeFor(stream, MaxSize)
	best := c.bestGap(units, func(h uint32) bool { return h == home || may(c.streamOf(h)) })
	if best.region == 0 {
		return false, nil
	}
	losers := holders(&c.layout, best, home)
	for _, h := range losers {
		if err := wait(c.streamOf(h)); err != nil {
			return false, err
		}
	}
	c.ended++ // A Mark from before does not cover the wait.
	c.move(best, home, c.streams[home/2].number)
	c.absorb()
	return len(losers) > 0, nil
}

// Stats returns the counters. Its time grows with the number of streams.
func (c *Core) Stats() Stats {
	c.mergeHot()
	n := &c.counts
	s := Stats{
		Segments: n.segments, Live: n.live,
		Mapped: c.mapped, MappedPeak: n.peakMapped,
		Used: n.used, UsedPeak: n.peak, Requested: n.requested, Cached: c.mapped - n.used,
		Deferred: n.deferred, Parked: n.parked, Pinned: n.pinned,
	}
	for _, x := range c.homes {
		if x != nil {
			s.LargestFree = max(s.LargestFree, c.largest(x))
		}
	}
	return s
}
