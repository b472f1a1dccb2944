package alloc

import "math/bits"

// Sizes fall into bins: one size a bin up to 1 MiB, 64 bins between powers of two above.
const (
	exactBins = 2048 // bins of one size; the largest of these sizes in units
	exactLog  = 11   // its logarithm
	subLog    = 6    // logarithm of the bins between two powers of two
	binCount  = 4096 // 64 words of 64 bits, so that one word summarises them
)

// binOf returns the bin of a size in units. A power of two is the last size of its bin, not the
// first, so a fresh segment stays in its bin when the first blocks are cut off.
func binOf(units uint64) int {
	last := units - 1
	if last < exactBins {
		return int(last)
	}
	log := uint(bits.Len64(last)) - 1
	sub := int(last>>((log-subLog)&63)) & (1<<subLog - 1)
	return exactBins + int(log-exactLog)<<subLog + sub
}

// index finds the free blocks of one stream by size. Two levels of bits say which bins may hold
// any. A bin lists its classes by size, one for each size that occurs. The class of a bin of one
// size stays when it empties; when its last block was taken by a request of that very size even
// the bits stay, until a search stumbles on them, so a size that comes and goes costs nothing.
type index struct {
	summary uint64
	words   [binCount / 64]uint64
	heads   [binCount]int32 // first class of each bin, 0 if none
}

func (x *index) set(bin int) {
	word := bin >> 6 & 63
	if x.words[word]>>(bin&63)&1 == 0 {
		x.words[word] |= 1 << (bin & 63)
		x.summary |= 1 << word
	}
}

func (x *index) reset(bin int) {
	word := bin >> 6 & 63
	x.words[word] &^= 1 << (bin & 63)
	if x.words[word] == 0 {
		x.summary &^= 1 << word
	}
}

// from returns the first bin from the given one on that may hold a block, or -1.
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
	if units <= exactBins {
		k := x.heads[units-1]
		if c.classes[k].front != 0 {
			return k
		}
		return c.scan(x, int(units)-1)
	}
	bin := binOf(units) & (binCount - 1)
	for k := x.heads[bin]; k != 0; k = c.classes[k].next {
		if c.classes[k].units >= units {
			return k
		}
	}
	return c.scan(x, bin+1)
}

// scan returns the first class from a bin on that holds a block, or 0.
func (c *Core) scan(x *index, bin int) int32 {
	for {
		if bin = x.from(bin); bin < 0 {
			return 0
		}
		k := x.heads[bin&(binCount-1)]
		if cl := &c.classes[k]; cl.front != 0 || len(cl.rest) != 0 {
			return k
		}
		x.reset(bin)
	}
}

// insert files a free block.
func (c *Core) insert(b *block, id int32) {
	x := c.homes[b.home]
	units := uint64(b.size) >> unitShift
	var k int32
	if units <= exactBins {
		x.set(int(units) - 1)
		k = x.heads[units-1]
	}
	if k == 0 {
		k = c.classFor(x, units)
	}
	b.class = k
	key := b.at<<idBits | uint64(id)
	cl := &c.classes[k]
	if cl.front == 0 && (key <= cl.low || len(cl.rest) == 0) {
		cl.front = key
		b.slot = inFront
		return
	}
	c.add(cl, b, key)
}

// remove takes a free block out of its index.
func (c *Core) remove(b *block) {
	cl := &c.classes[b.class]
	if b.slot == inFront {
		cl.low, cl.front = cl.front, 0
	} else {
		c.pull(cl, int(b.slot))
	}
	if cl.front|uint64(len(cl.rest)) == 0 {
		c.retire(c.homes[b.home], cl, b.class)
	}
}

// refile moves a free block whose size and position changed to its new place. A block that is
// alone in its class takes the class along while the order in the bin allows it.
func (c *Core) refile(b *block, id int32) {
	cl := &c.classes[b.class]
	units := uint64(b.size) >> unitShift
	if cl.bin >= exactBins && len(cl.rest) == 0 && int(cl.bin) == binOf(units) &&
		(cl.prev == 0 || c.classes[cl.prev].units < units) &&
		(cl.next == 0 || c.classes[cl.next].units > units) {
		cl.units = units
		cl.front = b.at<<idBits | uint64(id)
		return
	}
	c.remove(b)
	c.insert(b, id)
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
	cl.units, cl.bin, cl.prev, cl.next = units, int32(bin), prev, next
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

// retire notes that a class is empty. In bins of several sizes it is unlinked and keeps nothing
// but the memory of its rest.
func (c *Core) retire(x *index, cl *class, k int32) {
	if cl.bin < exactBins {
		x.reset(int(cl.bin))
		return
	}
	if cl.next != 0 {
		c.classes[cl.next].prev = cl.prev
	}
	if cl.prev != 0 {
		c.classes[cl.prev].next = cl.next
	} else if x.heads[cl.bin] = cl.next; cl.next == 0 {
		x.reset(int(cl.bin))
	}
	cl.next = c.unused
	c.unused = k
}

// largest returns the size in bytes of the largest free block of an index.
func (c *Core) largest(x *index) int64 {
	for x.summary != 0 {
		word := bits.Len64(x.summary) - 1
		bin := word<<6 + bits.Len64(x.words[word]) - 1
		k := x.heads[bin]
		if c.classes[k].count() == 0 {
			x.reset(bin)
			continue
		}
		for c.classes[k].next != 0 {
			k = c.classes[k].next
		}
		return int64(c.classes[k].units) << unitShift
	}
	return 0
}
