package alloc

import (
	"iter"
	"math/bits"
)

// Sizes are grouped into bins. Up to 1 MiB, each bin has one size; above 1 MiB, there are 64
// bins between successive powers of two.
const (
	exactBins = 2048 // number of bins with one size; also the largest of these sizes in units
	exactLog  = 11   // logarithm of exactBins
	subLog    = 6    // logarithm of the number of bins between two powers of two
	binCount  = 4096 // 64 words of 64 bits, summarized by one word
)

// binOf returns the bin of a size in units. A power of two is the last size of its bin rather than
// the first, so that the free block of a new segment stays in its bin when the first blocks are
// split off.
func binOf(units uint64) int {
	last := units - 1
	if last < exactBins {
		return int(last)
	}
	log := uint(bits.Len64(last)) - 1
	sub := int(last>>((log-subLog)&63)) & (1<<subLog - 1)
	return exactBins + int(log-exactLog)<<subLog + sub
}

// index finds the free blocks of one stream by size. A two-level bitmap records which bins are
// not empty. A bin with one size has a bag of blocks. A bin with several sizes has a list of
// classes, which are ordered by size.
type index struct {
	bags    [exactBins]bag // first field, so that no bag crosses a cache line
	summary uint64
	words   [binCount / 64]uint64
	lists   [binCount - exactBins]uint32 // for each bin with several sizes, its first class or 0
}

// class holds the blocks of one size in a bin with several sizes.
type class struct {
	units      uint64 // size of its blocks
	blocks     bag
	prev, next uint32 // neighbors in the bin; next also chains unused classes
}

func (x *index) set(bin uint) {
	word := bin >> 6 & 63
	x.words[word] |= 1 << (bin & 63)
	x.summary |= 1 << word
}

// clearIfEmpty marks a bin as empty if the number of its remaining blocks is 0. It has no branch,
// because a branch would be unpredictable.
func (x *index) clearIfEmpty(bin uint, blocks uint32) {
	word := bin >> 6 & 63
	w := x.words[word] ^ (uint64(blocks)-1)>>63<<(bin&63)
	x.words[word] = w
	x.summary ^= isZero(w) << word
}

// isZero returns 1 if n is 0, and otherwise 0. It has no branch.
func isZero(n uint64) uint64 { return ^(n | -n) >> 63 }

// nextBin returns the first nonempty bin at or above the given one, or -1 if there is none.
func (x *index) nextBin(bin int) int {
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

// find returns the smallest free block with at least the given number of units, and the block's
// size. Among blocks of the same size, it returns the one with the lowest position. If there is
// no such block, find returns 0, 0. It derives the size from the bin or class, so that the
// caller need not wait for the block's record.
func (f *freeBlocks) find(x *index, units uint64) (id uint32, found uint64) {
	f.credit += creditStep
	if units > exactBins {
		return f.findLarge(x, units)
	}
	bin := x.nextBin(int(units) - 1)
	if uint(bin) >= exactBins {
		return f.firstOf(x, bin)
	}
	return f.first(&x.bags[bin]), uint64(bin) + 1
}

// findLarge is like find, for requests above 1 MiB.
func (f *freeBlocks) findLarge(x *index, units uint64) (id uint32, found uint64) {
	bin := binOf(units)
	for k := *x.list(bin); k != 0; k = f.classes[k].next {
		if f.classes[k].units >= units {
			return f.first(&f.classes[k].blocks), f.classes[k].units
		}
	}
	return f.firstOf(x, x.nextBin(bin+1))
}

// firstOf returns the smallest block in a bin with several sizes, and the block's size. Among
// blocks of this size, it returns the one with the lowest position. For bin -1, it returns 0, 0.
func (f *freeBlocks) firstOf(x *index, bin int) (id uint32, found uint64) {
	if bin < 0 {
		return 0, 0
	}
	k := *x.list(bin)
	return f.first(&f.classes[k].blocks), f.classes[k].units
}

func (x *index) list(bin int) *uint32 { return &x.lists[(bin-exactBins)&(binCount-exactBins-1)] }

// insert adds a free block to an index. It contains an inlined copy of the common case of addKey,
// because function calls are a large part of the cost of placement. Callers pass the size, which
// they know before the block's record is loaded.
func (f *freeBlocks) insert(x *index, b *block, id uint32, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		f.addKey(&f.classes[f.classFor(x, units)].blocks, b, id)
		return
	}
	x.set(uint(bin))
	g := &x.bags[bin]
	slot := g.count
	if slot == g.capacity {
		f.addKey(g, b, id)
		return
	}
	g.count = slot + 1
	f.keys[g.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<slotShift
}

// remove removes a free block from its index. It contains an inlined copy of the common case of
// removeKey, and does not branch on whether the bin becomes empty.
func (f *freeBlocks) remove(x *index, b *block, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		f.removeLarge(x, b, units)
		return
	}
	g, slot := &x.bags[bin], b.slot()
	last := g.count - 1
	g.count = last
	x.clearIfEmpty(uint(bin), last)
	if slot < g.heaped || last+1 < g.capacity/4 {
		f.removeKeySlowly(g, slot)
		return
	}
	keys := f.keys
	key := keys[g.start+last]
	keys[g.start+slot] = key
	keys[g.start+last] = noKey
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// removeLarge is like remove, for blocks above 1 MiB.
func (f *freeBlocks) removeLarge(x *index, b *block, units uint64) {
	k := f.classOf(x, units)
	g := &f.classes[k].blocks
	if f.removeKey(g, b.slot()); g.count == 0 {
		f.dropClass(x, k)
	}
}

// reindex changes the place and size of a free block.
func (f *freeBlocks) reindex(x *index, b *block, id uint32, place, units uint64) {
	oldUnits := b.units()
	if oldUnits > exactBins && f.resizeClass(x, b, id, place, units) {
		return
	}
	f.remove(x, b, oldUnits)
	b.moveTo(place, units)
	f.insert(x, b, id, units)
}

// resizeClass is like reindex for a block that is alone in its class: it changes the size of the
// class. If the class has other blocks, or if the new size belongs to another bin or violates
// the order of classes, it changes nothing and returns false.
func (f *freeBlocks) resizeClass(x *index, b *block, id uint32, place, units uint64) bool {
	cl := &f.classes[f.classOf(x, b.units())]
	if cl.blocks.count != 1 || units <= exactBins ||
		binOf(b.units()) != binOf(units) ||
		cl.prev != 0 && f.classes[cl.prev].units >= units ||
		cl.next != 0 && f.classes[cl.next].units <= units {
		return false
	}
	cl.units = units
	b.moveTo(place, units)
	f.keys[cl.blocks.start] = b.key(id)
	return true
}

// classOf returns the class of a size above 1 MiB. The class must exist.
func (f *freeBlocks) classOf(x *index, units uint64) uint32 {
	k := *x.list(binOf(units))
	for f.classes[k].units != units {
		k = f.classes[k].next
	}
	return k
}

// classFor returns the class of a size above 1 MiB, creating it if necessary.
func (f *freeBlocks) classFor(x *index, units uint64) uint32 {
	bin := binOf(units)
	prev, next := uint32(0), *x.list(bin)
	for next != 0 && f.classes[next].units < units {
		prev, next = next, f.classes[next].next
	}
	if next != 0 && f.classes[next].units == units {
		return next
	}
	k := f.grabClass()
	cl := &f.classes[k]
	cl.units, cl.prev, cl.next = units, prev, next
	if next != 0 {
		f.classes[next].prev = k
	}
	if prev != 0 {
		f.classes[prev].next = k
	} else {
		*x.list(bin) = k
		x.set(uint(bin))
	}
	return k
}

// grabClass returns the number of an unused class, whose bag may still have an array. It may
// reallocate f.classes.
func (f *freeBlocks) grabClass() uint32 {
	if k := f.unused; k != 0 {
		f.unused = f.classes[k].next
		return k
	}
	f.classes = append(f.classes, class{})
	return uint32(len(f.classes) - 1)
}

func (f *freeBlocks) dropClass(x *index, k uint32) {
	cl := &f.classes[k]
	if cl.prev != 0 {
		f.classes[cl.prev].next = cl.next
	} else {
		bin := binOf(cl.units)
		*x.list(bin) = cl.next
		x.clearIfEmpty(uint(bin), cl.next)
	}
	if cl.next != 0 {
		f.classes[cl.next].prev = cl.prev
	}
	cl.next = f.unused
	f.unused = k
}

// forgetFree drops all classes and bags. The caller must drop the indexes, which refer to them.
func (f *freeBlocks) forgetFree() {
	f.keys, f.classes = f.keys[:1], f.classes[:1]
	f.spareKeys, f.unused, f.credit = [32]uint32{}, 0, 0
}

func (f *freeBlocks) largest(x *index) int64 {
	if x.summary == 0 {
		return 0
	}
	word := bits.Len64(x.summary) - 1
	bin := word<<6 + bits.Len64(x.words[word]) - 1
	if bin < exactBins {
		return int64(bin+1) << unitShift
	}
	k := *x.list(bin)
	for f.classes[k].next != 0 {
		k = f.classes[k].next
	}
	return int64(f.classes[k].units) << unitShift
}

func (f *freeBlocks) freeBytes(x *index) int64 {
	var units int64
	for size, g := range f.eachClass(x) {
		units += int64(size) * int64(g.count)
	}
	return units << unitShift
}

// eachClass yields the size in units and the bag of each class that has blocks, ordered by size.
func (f *freeBlocks) eachClass(x *index) iter.Seq2[uint64, *bag] {
	return func(yield func(uint64, *bag) bool) {
		for w := range x.words {
			for mask := x.words[w]; mask != 0; mask &= mask - 1 {
				if !f.classesOfBin(x, w<<6+bits.TrailingZeros64(mask), yield) {
					return
				}
			}
		}
	}
}

func (f *freeBlocks) classesOfBin(x *index, bin int, yield func(uint64, *bag) bool) bool {
	if bin < exactBins {
		return yield(uint64(bin)+1, &x.bags[bin])
	}
	for k := *x.list(bin); k != 0; k = f.classes[k].next {
		if !yield(f.classes[k].units, &f.classes[k].blocks) {
			return false
		}
	}
	return true
}
