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

// index finds the free blocks of one stream by size. Two levels of bits say which bins hold any.
// A bin of one size is a class; a bin of several lists its classes by size, one for each size that
// occurs.
type index struct {
	summary uint64
	words   [binCount / 64]uint64
	heads   [binCount]int32 // head of the class, or first of the classes; 0 if there is none
}

// class is one of those of a bin of several sizes.
type class struct {
	units      uint64 // what its blocks have
	head       int32  // its first block
	prev, next int32  // neighbours in the bin; next also chains unused classes
}

// set says that a bin holds some.
func (x *index) set(bin int) {
	word := bin >> 6 & 63
	x.words[word] |= 1 << (bin & 63)
	x.summary |= 1 << word
}

// put says whether a bin holds any: it does unless held is 0.
func (x *index) put(bin int, held uint64) {
	word := bin >> 6 & 63
	w := x.words[word]&^(1<<(bin&63)) | some(held)<<(bin&63)
	x.words[word] = w
	x.summary = x.summary&^(1<<word) | some(w)<<word
}

// some is 1 unless n is 0, without a branch.
func some(n uint64) uint64 { return (n | -n) >> 63 }

// from returns the first bin from the given one on that holds a block, or -1.
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

// find returns the first of the smallest free blocks of at least so many units, or 0.
func (c *Core) find(x *index, units uint64) int32 {
	c.credit += creditStep
	bin := int(units) - 1
	if units > exactBins {
		bin = binOf(units)
		for k := x.heads[bin&(binCount-1)]; k != 0; k = c.classes[k].next {
			if c.classes[k].units >= units {
				return c.lowest(&c.classes[k].head)
			}
		}
		bin++
	}
	if bin = x.from(bin); bin < 0 {
		return 0
	}
	head := &x.heads[bin&(binCount-1)]
	if bin >= exactBins {
		head = &c.classes[*head].head
	}
	if c.blocks[*head].after() == 0 {
		return *head
	}
	return c.lowest(head)
}

// insert files a free block.
func (c *Core) insert(x *index, b *block, id int32) {
	last := b.units() - 1
	if last >= exactBins {
		cl := c.classFor(x, last+1)
		c.push(b, id, cl.head)
		cl.head = id
		return
	}
	x.set(int(last))
	first := x.heads[last]
	x.heads[last] = id
	c.push(b, id, first)
}

// remove takes a free block out of its index. Whether the block is the head of its class is
// anybody's guess, so the head and the bit are written anyhow: no branch depends on it.
func (c *Core) remove(x *index, b *block, id int32) {
	last := b.units() - 1
	if b.rest&sided != 0 || last >= exactBins {
		c.removeSlowly(x, b, id)
		return
	}
	before, after := b.before(), b.after()
	c.blocks[before].setAfter(after)
	c.blocks[after].setBefore(before)
	head := x.heads[last]
	if before == 0 {
		head = after
	}
	x.heads[last] = head
	x.put(int(last), uint64(before|after))
}

// removeSlowly is remove for any block.
func (c *Core) removeSlowly(x *index, b *block, id int32) {
	units := b.units()
	if units <= exactBins {
		head := &x.heads[units-1]
		*head = c.uproot(b, id, *head)
		x.put(int(units)-1, uint64(*head))
		return
	}
	k := c.classOf(x, units)
	cl := &c.classes[k]
	if cl.head = c.uproot(b, id, cl.head); cl.head == 0 {
		c.retire(x, k)
	}
}

// refile gives a free block a new place and size.
func (c *Core) refile(x *index, b *block, id int32, place, units uint64) {
	if b.units() > exactBins && c.stretch(x, b, id, place, units) {
		return
	}
	c.remove(x, b, id)
	b.moveTo(place, units)
	c.insert(x, b, id)
}

// stretch is refile for a block that is alone in its class and takes the class along. It reports
// false if the order in the bin does not allow it.
func (c *Core) stretch(x *index, b *block, id int32, place, units uint64) bool {
	cl := &c.classes[c.classOf(x, b.units())]
	if b.rest != uint64(Free) || cl.head != id || units <= exactBins ||
		binOf(b.units()) != binOf(units) ||
		cl.prev != 0 && c.classes[cl.prev].units >= units ||
		cl.next != 0 && c.classes[cl.next].units <= units {
		return false
	}
	cl.units = units
	b.moveTo(place, units)
	return true
}

// classOf returns the class of a size above 1 MiB that occurs.
func (c *Core) classOf(x *index, units uint64) int32 {
	k := x.heads[binOf(units)]
	for c.classes[k].units != units {
		k = c.classes[k].next
	}
	return k
}

// classFor returns the class of a size above 1 MiB, which it makes if need be.
func (c *Core) classFor(x *index, units uint64) *class {
	bin := binOf(units)
	prev, next := int32(0), x.heads[bin]
	for next != 0 && c.classes[next].units < units {
		prev, next = next, c.classes[next].next
	}
	if next != 0 && c.classes[next].units == units {
		return &c.classes[next]
	}
	k := c.grabClass()
	c.classes[k] = class{units: units, prev: prev, next: next}
	if next != 0 {
		c.classes[next].prev = k
	}
	if prev != 0 {
		c.classes[prev].next = k
	} else {
		x.heads[bin] = k
		x.set(bin)
	}
	return &c.classes[k]
}

// grabClass returns the number of an unused class. It may move the classes.
func (c *Core) grabClass() int32 {
	if k := c.unused; k != 0 {
		c.unused = c.classes[k].next
		return k
	}
	c.classes = append(c.classes, class{})
	return int32(len(c.classes) - 1)
}

// retire unlinks an empty class.
func (c *Core) retire(x *index, k int32) {
	cl := &c.classes[k]
	if cl.prev != 0 {
		c.classes[cl.prev].next = cl.next
	} else {
		bin := binOf(cl.units)
		x.heads[bin] = cl.next
		x.put(bin, uint64(cl.next))
	}
	if cl.next != 0 {
		c.classes[cl.next].prev = cl.prev
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
	bin := word<<6 + bits.Len64(x.words[word]) - 1
	if bin < exactBins {
		return int64(bin+1) << unitShift
	}
	k := x.heads[bin]
	for c.classes[k].next != 0 {
		k = c.classes[k].next
	}
	return int64(c.classes[k].units) << unitShift
}
