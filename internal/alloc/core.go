package alloc

import "fmt"

// Core decides where blocks of one arena lie. It holds no lock, does no I/O and knows no clock:
// the caller serialises calls, maps segments and records events. Make one with New.
//
// Every call that changes a Core is part of its history. Under the Creation policy, Cores with
// equal Configs and equal histories (segment addresses aside) place every block alike.
type Core struct {
	config   Config
	blocks   []block    // by number; 0 is no block
	sides    []side     // by number of the block
	keys     []uint64   // of the bags; the first is none's
	rooms    [32]uint32 // first unused room of each size in keys, by its logarithm
	credit   int        // keys that searches may still look at; see bag.go
	vacant   int32      // first vacant record
	classes  []class    // by number; 0 is no class
	unused   int32      // first unused class
	segments []segment
	homes    []*index // large, then small index of each stream, by number; nil until wanted
	streams  []stream
	numbers  map[Stream]int32 // number of each stream
	recent   Stream           // stream of the latest request
	current  int32            // its large index
	uses     []use            // by number; 0 is no use
	spare    int32            // first spare use
	marked   uint64           // Use calls so far
	tickets  Ticket           // latest ticket
	tail     uint64           // first unused arena position, in units
	last     int32            // block of the latest call if that was an Alloc, else 0; see hot.go
	asked    int64            // rounded size of that Alloc
	askedOf  int32            // index of that Alloc
	hot      int32            // block kept apart after its Free, or 0; see hot.go
	undone   bool             // that Free undid the call before it
	mapped   int64
	counts   counts
	reports  reports
}

// New returns an empty Core, or an ErrConfig.
func New(config Config) (*Core, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.ensureDefaults()
	c := &Core{
		config:  config,
		blocks:  make([]block, 1, 64),
		sides:   make([]side, 1, 64),
		keys:    make([]uint64, 1, 64),
		classes: make([]class, 1, 64),
		uses:    make([]use, 1),
		numbers: map[Stream]int32{},
	}
	c.turn(0)
	return c, nil
}

// Config returns the configuration with its defaults filled in.
func (c *Core) Config() Config { return c.config }

// Growth asks for a segment. The caller maps one and hands both to AddSegment; it may raise
// Bytes if the backend has only larger ones.
type Growth struct {
	Bytes int64 // size of the segment; 0 means that none is wanted
	home  int32 // whose free memory the segment becomes
}

// Alloc places size bytes for a stream. If the growth asks for a segment, nothing was placed:
// the caller maps it, calls AddSegment (or GrowFailed) and then Alloc again.
//
// Before it grows or fails, Alloc takes back deferred blocks of the stream, oldest first, until
// one fits. Then, whatever the outcome, Waits and Returned say what the caller has to do.
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
	rounded := c.round(size)
	if stream != c.recent {
		c.turn(stream)
	}
	home := c.current + c.smallBit(rounded)
	var id int32
	switch {
	case c.hot == 0:
		id = c.fit(home, rounded)
	case (c.undone || c.blocks[c.hot].size() == rounded) && c.again(rounded, home):
		id = c.hot
		c.last, c.hot = id, 0
		c.asked, c.askedOf = rounded, home
		return c.hand(&c.blocks[id], id, size), Growth{}, nil
	default:
		id = c.fitBeside(home, uint64(rounded)>>unitShift)
	}
	if id == 0 {
		c.last = 0
		return c.press(size, rounded, home)
	}
	b := c.cut(c.homes[home], id, size, rounded)
	c.last, c.asked, c.askedOf = int32(uint32(b.Handle)), rounded, home
	return b, Growth{}, nil
}

func badSize(doing string, size int64) error {
	return fmt.Errorf("%s %d bytes: %w", doing, size, ErrSize)
}

// homeFor returns the number of the index that serves a stream and size.
func (c *Core) homeFor(stream Stream, rounded int64) int32 {
	if stream != c.recent {
		c.turn(stream)
	}
	return c.current + c.smallBit(rounded)
}

// turn makes a stream the one that is found at once.
func (c *Core) turn(stream Stream) {
	c.recent, c.current = stream, c.number(stream)*2
}

// fit returns the free block that serves a rounded size, or 0.
func (c *Core) fit(home int32, rounded int64) int32 {
	x := c.homes[home]
	if x == nil {
		return 0
	}
	id := c.find(x, uint64(rounded)>>unitShift)
	if c.config.MaxSplit != 0 && !c.suits(c.blocks[id].size(), rounded) {
		return 0
	}
	return id
}

// cut takes what a request needs from a free block, or all of it if it must not be split, and hands
// that to the caller.
func (c *Core) cut(x *index, id int32, size, rounded int64) Block {
	b := &c.blocks[id]
	if c.splits(rounded, b.size()-rounded) {
		id = c.split(x, id, uint64(rounded)>>unitShift)
		b = &c.blocks[id]
	} else {
		c.remove(x, b)
	}
	b.rest = uint64(Live) | uint64(size)<<askedShift
	ordinal, bytes := b.segment(), b.size()
	s := &c.segments[ordinal]
	offset := b.position() - s.base
	s.hints[offset>>hintShift] = id
	c.count(size, bytes)
	return Block{ordinal, int64(offset) << unitShift, bytes, makeHandle(id, b.generation)}
}

// count notes a block that was handed out.
func (c *Core) count(size, bytes int64) {
	c.counts.live++
	c.counts.requested += size
	used := c.counts.used + bytes
	c.counts.used = used
	if used > c.counts.peak {
		c.counts.peak = used
	}
}

// hand gives the block that was kept apart to the caller again.
func (c *Core) hand(b *block, id int32, size int64) Block {
	b.rest = uint64(Live) | uint64(size)<<askedShift
	v := c.known(b, id)
	c.count(size, v.Size)
	return v
}

// split cuts the front off a free block, whose record keeps the rest, and returns the front.
func (c *Core) split(x *index, id int32, units uint64) int32 {
	front := c.grab()
	b, f := &c.blocks[id], &c.blocks[front]
	prev, place, rest := b.prev(), b.place, b.units()-units
	f.place, f.span, f.next = place, units<<idBits, id
	c.follow(f, place, prev, front)
	b.setPrev(front)
	place += units << idBits
	if b.units() > exactBins && c.stretch(x, b, id, place, rest) {
		return front
	}
	c.remove(x, b)
	b.moveTo(place, rest)
	c.insert(x, b, id)
	return front
}

// press is the slow half of Alloc: nothing fits at once. A segment that was just added serves
// the request even where MaxSplit would keep its block for larger ones.
func (c *Core) press(size, rounded int64, home int32) (Block, Growth, error) {
	if id := c.untouched(home); c.blocks[id].size() >= rounded {
		return c.cut(c.homes[home], id, size, rounded), Growth{}, nil
	}
	for s := &c.streams[home/2]; s.first != 0; {
		c.takeBack(s.first)
		if id := c.fit(home, rounded); id != 0 {
			return c.cut(c.homes[home], id, size, rounded), Growth{}, nil
		}
	}
	bytes := c.segmentSize(rounded)
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		bytes = c.remains(rounded)
	}
	if bytes == 0 {
		return Block{}, Growth{}, c.outOfMemory(size, home)
	}
	return Block{}, Growth{Bytes: bytes, home: home}, nil
}

// untouched returns the block of the newest segment if that is wholly free and belongs to an
// index; otherwise 0, the block without size.
func (c *Core) untouched(home int32) int32 {
	if len(c.segments) == 0 {
		return 0
	}
	s := &c.segments[len(c.segments)-1]
	if s.bytes == 0 || s.home != home || !c.whollyFree(s) {
		return 0
	}
	return s.first
}

// remains returns the largest segment that the capacity still allows, or 0 if it could not
// hold rounded bytes. Stepped sizes are not shrunk.
func (c *Core) remains(rounded int64) int64 {
	left := (c.config.Capacity - c.mapped) &^ (c.config.Granularity - 1)
	if left < rounded || c.config.Sizing == Stepped {
		return 0
	}
	return left
}

// GrowFailed returns the *OutOfMemoryError for a request whose segment the backend could not
// map. It changes nothing, so the request may be tried again after memory was freed.
func (c *Core) GrowFailed(size int64, stream Stream) error {
	if size <= 0 || size > MaxSize {
		return badSize("allocating", size)
	}
	c.settle()
	return c.outOfMemory(size, c.homeFor(stream, c.round(size)))
}

func (c *Core) outOfMemory(size int64, home int32) error {
	e := &OutOfMemoryError{Requested: size, Capacity: c.config.Capacity}
	for _, h := range [2]int32{home &^ 1, home | 1} {
		if x := c.homes[h]; x != nil {
			e.Free += c.freeBytes(x)
			e.LargestFree = max(e.LargestFree, c.largest(x))
		}
	}
	return e
}

// Reserve asks for the segment after which so many more bytes can be placed for a stream
// without growing: any requests whose block sizes sum to at most bytes. It asks for nothing if
// one free block of the stream is that large already. The segment serves that stream alone, as
// every segment does; under Stepped sizing it serves requests above 1 MiB only.
//
// Errors: ErrSize, *OutOfMemoryError when Capacity leaves no room.
func (c *Core) Reserve(bytes int64, stream Stream) (Growth, error) {
	c.settle()
	c.reports.clear()
	if bytes <= 0 || bytes > MaxSize {
		return Growth{}, badSize("reserving", bytes)
	}
	home := c.homeFor(stream, MaxSize)
	if x := c.homes[home]; x != nil && c.largest(x) >= roundUp(bytes, Unit) {
		return Growth{}, nil
	}
	need := roundUp(bytes, c.config.Granularity)
	if limit := c.config.Capacity; limit > 0 && need > limit-c.mapped {
		if need = c.remains(roundUp(bytes, Unit)); need == 0 {
			return Growth{}, c.outOfMemory(bytes, home)
		}
	}
	return Growth{Bytes: need, home: home}, nil
}
