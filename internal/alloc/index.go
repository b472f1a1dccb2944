package alloc

import "math/bits"

// Sizes fall into bins: one size a bin below 1 MiB, 64 bins between powers of two above.
const (
	exactBins = 2048 // units of the first bin that holds more than one size
	exactLog  = 11   // its logarithm
	subLog    = 6    // logarithm of the bins between two powers of two
	binCount  = 4096 // 64 words of 64 bits, so that one word summarises them
)

// binOf returns the bin of a size in units.
func binOf(units uint64) int {
	if units < exactBins {
		return int(units)
	}
	log := bits.Len64(units) - 1
	sub := int(units>>(log-subLog)) & (1<<subLog - 1)
	return exactBins + (log-exactLog)<<subLog + sub
}

// index finds the free blocks of one stream by size. Two levels of bits say which bins hold
// any. A bin lists its classes by size, one for each size that occurs; the class of a bin of
// one size stays when it empties.
type index struct {
	stream  int32 // number of the stream in Core.streams
	small   bool  // whether it serves the small segments of the stream
	summary uint64
	words   [binCount / 64]uint64
	heads   [binCount]int32 // first class of each bin, 0 if none
}

func (x *index) set(bin int) {
	word := bin >> 6 & 63
	x.words[word] |= 1 << (bin & 63)
	x.summary |= 1 << word
}

func (x *index) reset(bin int) {
	word := bin >> 6 & 63
	x.words[word] &^= 1 << (bin & 63)
	if x.words[word] == 0 {
		x.summary &^= 1 << word
	}
}

// from returns the first bin from the given one on that holds any block, or -1.
func (x *index) from(bin int) int {
	word := bin >> 6 & 63
	if mask := x.words[word] >> (bin & 63) << (bin & 63); mask != 0 {
		return word<<6 + bits.TrailingZeros64(mask)
	}
	summary := x.summary &^ (2<<word - 1)
	if summary == 0 {
		return -1
	}
	word = bits.TrailingZeros64(summary) & 63
	return word<<6 + bits.TrailingZeros64(x.words[word])
}

// find returns the class of the smallest free blocks of at least so many units, or 0.
func (c *Core) find(x *index, units uint64) int32 {
	bin := binOf(units)
	if bin >= exactBins {
		for k := x.heads[bin&(binCount-1)]; k != 0; k = c.classes[k].next {
			if c.classes[k].units >= units {
				return k
			}
		}
		bin++
	}
	if bin = x.from(bin); bin < 0 {
		return 0
	}
	return x.heads[bin&(binCount-1)]
}

// insert files a free block.
func (c *Core) insert(id int32) {
	b := &c.blocks[id]
	x := c.homes[b.home]
	units := uint64(b.size) >> unitShift
	var k int32
	if units < exactBins {
		x.set(int(units))
		k = x.heads[units]
	}
	if k == 0 {
		k = c.classFor(x, units)
	}
	b.class = k
	b.slot = c.classes[k].add(b.at<<idBits | uint64(id))
	if b.slot == swapped {
		c.demote(k, id)
	}
}

// remove takes a free block out of its index.
func (c *Core) remove(id int32) {
	b := &c.blocks[id]
	cl := &c.classes[b.class]
	if b.slot == inFront {
		cl.low, cl.front = cl.front, 0
	} else {
		c.pull(cl, int(b.slot))
	}
	if cl.front == 0 && len(cl.rest) == 0 {
		c.empty(c.homes[b.home], b.class)
	}
}

// refile moves a free block whose size and position changed to its new place. A block that is
// alone in its class takes the class along while the order in the bin allows it.
func (c *Core) refile(id int32) {
	b := &c.blocks[id]
	cl := &c.classes[b.class]
	units := uint64(b.size) >> unitShift
	if cl.units >= exactBins && len(cl.rest) == 0 && binOf(cl.units) == binOf(units) &&
		(cl.prev == 0 || c.classes[cl.prev].units < units) &&
		(cl.next == 0 || c.classes[cl.next].units > units) {
		cl.units = units
		cl.front = b.at<<idBits | uint64(id)
		return
	}
	c.remove(id)
	c.insert(id)
}

// classFor returns the class of a size, which it makes if need be.
func (c *Core) classFor(x *index, units uint64) int32 {
	bin := binOf(units)
	prev, next := int32(0), x.heads[bin]
	for next != 0 && c.classes[next].units < units {
		prev, next = next, c.classes[next].next
	}
	if next != 0 && c.classes[next].units == units {
		return next
	}
	k := c.grabClass()
	cl := &c.classes[k]
	cl.units, cl.prev, cl.next, cl.low = units, prev, next, 0
	if next != 0 {
		c.classes[next].prev = k
	}
	if prev != 0 {
		c.classes[prev].next = k
		return k
	}
	x.heads[bin] = k
	x.set(bin)
	return k
}

// grabClass returns an unused class. It may move the classes.
func (c *Core) grabClass() int32 {
	if k := c.unused; k != 0 {
		c.unused = c.classes[k].next
		return k
	}
	c.classes = append(c.classes, class{})
	return int32(len(c.classes) - 1)
}

// empty notes that a class holds no block any more. It keeps the memory of its rest.
func (c *Core) empty(x *index, k int32) {
	cl := &c.classes[k]
	if cl.units < exactBins {
		x.reset(int(cl.units))
		return
	}
	if cl.next != 0 {
		c.classes[cl.next].prev = cl.prev
	}
	if cl.prev != 0 {
		c.classes[cl.prev].next = cl.next
	} else if bin := binOf(cl.units); cl.next != 0 {
		x.heads[bin] = cl.next
	} else {
		x.heads[bin] = 0
		x.reset(bin)
	}
	cl.next = c.unused
	c.unused = k
}

// largest returns the size in bytes of the largest free block of an index.
func (c *Core) largest(x *index) int64 {
	if x.summary == 0 {
		return 0
	}
	word := bits.Len64(x.summary) - 1
	k := x.heads[word<<6+bits.Len64(x.words[word])-1]
	for c.classes[k].next != 0 {
		k = c.classes[k].next
	}
	return int64(c.classes[k].units) << unitShift
}
