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
// A bin of one size is a bag; a bin of several lists its classes by size, one for each size that
// occurs.
type index struct {
	bags    [exactBins]bag // first, so that none lies across two cache lines
	summary uint64
	words   [binCount / 64]uint64
	lists   [binCount - exactBins]uint32 // first of the classes of a bin; 0 if there is none
}

// class is one of those of a bin of several sizes.
type class struct {
	units      uint64 // what its blocks have
	blocks     bag
	prev, next uint32 // neighbours in the bin; next also chains unused classes
}

// set says that a bin holds some.
func (x *index) set(bin uint) {
	word := bin >> 6 & 63
	x.words[word] |= 1 << (bin & 63)
	x.summary |= 1 << word
}

// clear says that a bin which held some holds none if that is what left says. Nobody could guess
// whether it is, so no branch depends on it.
func (x *index) clear(bin uint, left uint32) {
	word := bin >> 6 & 63
	w := x.words[word] ^ (uint64(left)-1)>>63<<(bin&63)
	x.words[word] = w
	x.summary ^= none(w) << word
}

// none is 1 if n is 0, else 0, without a branch.
func none(n uint64) uint64 { return ^(n | -n) >> 63 }

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

// find returns the first of the smallest free blocks of at least so many units, and how many it
// has; 0 and 0 if there is none. The bin or class tells the size, so that nobody has to wait for
// the record of the block to know what will be left of it.
func (c *Core) find(x *index, units uint64) (id uint32, found uint64) {
	c.credit += creditStep
	if units > exactBins {
		return c.findLarge(x, units)
	}
	bin := x.from(int(units) - 1)
	if uint(bin) >= exactBins {
		return c.firstOf(x, bin)
	}
	return c.first(&x.bags[bin]), uint64(bin) + 1
}

// findLarge is find for more than 1 MiB.
func (c *Core) findLarge(x *index, units uint64) (id uint32, found uint64) {
	bin := binOf(units)
	for k := *x.list(bin); k != 0; k = c.classes[k].next {
		if c.classes[k].units >= units {
			return c.first(&c.classes[k].blocks), c.classes[k].units
		}
	}
	return c.firstOf(x, x.from(bin+1))
}

// firstOf returns the first of the smallest blocks of a bin of several sizes, or 0 for bin -1.
func (c *Core) firstOf(x *index, bin int) (id uint32, found uint64) {
	if bin < 0 {
		return 0, 0
	}
	k := *x.list(bin)
	return c.first(&c.classes[k].blocks), c.classes[k].units
}

// list is where the first class of a bin of several sizes stands.
func (x *index) list(bin int) *uint32 { return &x.lists[(bin-exactBins)&(binCount-exactBins-1)] }

// insert files a free block of so many units. It spells out the common case of add, as remove does
// with take: calls are a good part of what placement costs. Both are told the size, which callers
// know before the record of the block has come.
func (c *Core) insert(x *index, b *block, id uint32, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		c.add(&c.classes[c.classFor(x, units)].blocks, b, id)
		return
	}
	x.set(uint(bin))
	g := &x.bags[bin]
	slot := g.count
	if slot == g.room {
		c.add(g, b, id)
		return
	}
	g.count = slot + 1
	c.keys[g.start+slot] = b.key(id)
	b.rest = uint64(Free) | uint64(slot)<<slotShift
}

// remove takes a free block of so many units out of its index. Whether it is the only one of its
// bin cannot be predicted, so the bits are written in any case: no branch depends on it.
func (c *Core) remove(x *index, b *block, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		c.removeLarge(x, b, units)
		return
	}
	g, slot := &x.bags[bin], b.slot()
	last := g.count - 1
	g.count = last
	x.clear(uint(bin), last)
	if slot < g.heaped || last+1 < g.room/4 {
		c.takeSlowly(g, slot)
		return
	}
	keys := c.keys
	key := keys[g.start+last]
	keys[g.start+slot] = key
	keys[g.start+last] = noKey
	c.blocks[key&idMask].rest = uint64(Free) | uint64(slot)<<slotShift
}

// removeLarge is remove for a block above 1 MiB.
func (c *Core) removeLarge(x *index, b *block, units uint64) {
	k := c.classOf(x, units)
	g := &c.classes[k].blocks
	if c.take(g, b.slot()); g.count == 0 {
		c.retire(x, k)
	}
}

// refile gives a free block a new place and size.
func (c *Core) refile(x *index, b *block, id uint32, place, units uint64) {
	was := b.units()
	if was > exactBins && c.stretch(x, b, id, place, units) {
		return
	}
	c.remove(x, b, was)
	b.moveTo(place, units)
	c.insert(x, b, id, units)
}

// stretch is refile for a block that is alone in its class and takes the class along. It reports
// false if the order in the bin does not allow it.
func (c *Core) stretch(x *index, b *block, id uint32, place, units uint64) bool {
	cl := &c.classes[c.classOf(x, b.units())]
	if cl.blocks.count != 1 || units <= exactBins ||
		binOf(b.units()) != binOf(units) ||
		cl.prev != 0 && c.classes[cl.prev].units >= units ||
		cl.next != 0 && c.classes[cl.next].units <= units {
		return false
	}
	cl.units = units
	b.moveTo(place, units)
	c.keys[cl.blocks.start] = b.key(id)
	return true
}

// classOf returns the class of a size above 1 MiB that occurs.
func (c *Core) classOf(x *index, units uint64) uint32 {
	k := *x.list(binOf(units))
	for c.classes[k].units != units {
		k = c.classes[k].next
	}
	return k
}

// classFor returns the class of a size above 1 MiB, which it makes if need be.
func (c *Core) classFor(x *index, units uint64) uint32 {
	bin := binOf(units)
	prev, next := uint32(0), *x.list(bin)
	for next != 0 && c.classes[next].units < units {
		prev, next = next, c.classes[next].next
	}
	if next != 0 && c.classes[next].units == units {
		return next
	}
	k := c.grabClass()
	cl := &c.classes[k]
	cl.units, cl.prev, cl.next = units, prev, next
	if next != 0 {
		c.classes[next].prev = k
	}
	if prev != 0 {
		c.classes[prev].next = k
	} else {
		*x.list(bin) = k
		x.set(uint(bin))
	}
	return k
}

// grabClass returns the number of an unused class, which has kept its room if it was used before.
// It may move the classes.
func (c *Core) grabClass() uint32 {
	if k := c.unused; k != 0 {
		c.unused = c.classes[k].next
		return k
	}
	c.classes = append(c.classes, class{})
	return uint32(len(c.classes) - 1)
}

// retire unlinks an empty class.
func (c *Core) retire(x *index, k uint32) {
	cl := &c.classes[k]
	if cl.prev != 0 {
		c.classes[cl.prev].next = cl.next
	} else {
		bin := binOf(cl.units)
		*x.list(bin) = cl.next
		x.clear(uint(bin), cl.next)
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
	k := *x.list(bin)
	for c.classes[k].next != 0 {
		k = c.classes[k].next
	}
	return int64(c.classes[k].units) << unitShift
}
