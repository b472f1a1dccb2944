package alloc

import "math/bits"

// A key orders the free blocks of one size: arena position in units above, record below.
const (
	idBits   = 26
	idMask   = 1<<idBits - 1
	atLimit  = uint64(1) << (64 - idBits) // first position that no key can hold
	inFront  = -1                         // slot of the block that a class holds in front
	binShift = 7
	subBins  = 1 << binShift // bins between two powers of two
	binCount = 4096          // 64 words of 64 bits, so one word summarises them
)

// binOf returns the bin of a size in units. Bins hold one size each up to 255 units and up to
// 1/128 of their size above.
func binOf(units uint64) int {
	if units < subBins {
		return int(units)
	}
	shift := bits.Len64(units) - 1 - binShift
	return (shift+1)<<binShift | int(units>>shift)&(subBins-1)
}

// index finds the free blocks of one stream by size. Bins split the sizes; two levels of bits
// say which bins hold any; a bin lists its classes, one for each size that occurs, by size.
type index struct {
	stream  int32 // number of the stream in Core.streams
	small   bool  // whether it serves the small segments of the stream
	summary uint64
	words   [binCount / 64]uint64
	heads   [binCount]int32 // first class of each bin, 0 if none
}

// class holds the free blocks of one size of one index. The lowest key stands in front of the
// heap. When it is taken the front stays empty until the next block is wanted: mostly the very
// same block returns before, and the heap is not touched.
type class struct {
	front      uint64 // lowest key, or 0 if it was taken
	heap       []uint64
	units      uint64
	prev, next int32 // neighbours in the bin; next also chains unused classes
}

// key returns the key of a block.
func (b *block) key(id int32) uint64 { return b.at<<idBits | uint64(id) }

// find returns the class of the smallest free blocks of at least so many units, or 0.
func (c *Core) find(x *index, units uint64) int32 {
	bin := binOf(units)
	for k := x.heads[bin&(binCount-1)]; k != 0; k = c.classes[k].next {
		if c.classes[k].units >= units {
			return k
		}
	}
	word := bin >> 6
	mask := x.words[word&63] &^ (2<<(bin&63) - 1)
	if mask == 0 {
		summary := x.summary &^ (2<<(word&63) - 1)
		if summary == 0 {
			return 0
		}
		word = bits.TrailingZeros64(summary)
		mask = x.words[word&63]
	}
	return x.heads[(word<<6+bits.TrailingZeros64(mask))&(binCount-1)]
}

// lowest returns the block of a class that comes first in the order of the policy.
func (c *Core) lowest(k int32) int32 {
	cl := &c.classes[k]
	if cl.front == 0 {
		cl.front = cl.heap[0]
		cl.heap = c.pull(cl.heap, 0)
		c.blocks[cl.front&idMask].slot = inFront
	}
	return int32(cl.front & idMask)
}

// insert files a free block.
func (c *Core) insert(id int32) {
	b := &c.blocks[id]
	units := uint64(b.size) >> unitShift
	k := c.classFor(c.homes[b.home], units)
	b.class = k
	key := b.key(id)
	cl := &c.classes[k]
	switch {
	case cl.front == 0 && (len(cl.heap) == 0 || key < cl.heap[0]):
		cl.front = key
		b.slot = inFront
		return
	case key < cl.front:
		cl.front, key = key, cl.front
		b.slot = inFront
	}
	cl.heap = append(cl.heap, key)
	c.rise(cl.heap, len(cl.heap)-1, key)
}

// remove takes a free block out of its index.
func (c *Core) remove(id int32) {
	b := &c.blocks[id]
	cl := &c.classes[b.class]
	if b.slot == inFront {
		cl.front = 0
	} else {
		cl.heap = c.pull(cl.heap, int(b.slot))
	}
	if cl.front == 0 && len(cl.heap) == 0 {
		c.unlink(c.homes[b.home], b.class)
	}
}

// refile moves a free block whose size and position changed to its new place. A block that is
// alone in its class takes the class along while the order in the bin allows it.
func (c *Core) refile(id int32) {
	b := &c.blocks[id]
	cl := &c.classes[b.class]
	units := uint64(b.size) >> unitShift
	if len(cl.heap) == 0 && binOf(cl.units) == binOf(units) &&
		(cl.prev == 0 || c.classes[cl.prev].units < units) &&
		(cl.next == 0 || c.classes[cl.next].units > units) {
		cl.units = units
		cl.front = b.key(id)
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
	cl.units, cl.prev, cl.next = units, prev, next
	if next != 0 {
		c.classes[next].prev = k
	}
	if prev != 0 {
		c.classes[prev].next = k
		return k
	}
	x.heads[bin] = k
	x.words[bin>>6] |= 1 << (bin & 63)
	x.summary |= 1 << (bin >> 6)
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

// unlink takes an empty class out of its bin. The class keeps the memory of its heap.
func (c *Core) unlink(x *index, k int32) {
	cl := &c.classes[k]
	if cl.next != 0 {
		c.classes[cl.next].prev = cl.prev
	}
	if cl.prev != 0 {
		c.classes[cl.prev].next = cl.next
	} else {
		x.setHead(binOf(cl.units), cl.next)
	}
	cl.next = c.unused
	c.unused = k
}

// setHead makes a class the first of a bin; 0 empties the bin.
func (x *index) setHead(bin int, k int32) {
	x.heads[bin] = k
	if k != 0 {
		return
	}
	word := bin >> 6
	x.words[word] &^= 1 << (bin & 63)
	if x.words[word] == 0 {
		x.summary &^= 1 << word
	}
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
