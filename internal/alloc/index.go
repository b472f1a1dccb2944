package alloc

import (
	"iter"
	"math/bits"
)

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
func (f *freeBlocks) find(x *index, units uint64) (id uint32, found uint64) {
	f.credit += creditStep
	if units > exactBins {
		return f.findLarge(x, units)
	}
	bin := x.from(int(units) - 1)
	if uint(bin) >= exactBins {
		return f.firstOf(x, bin)
	}
	return f.first(&x.bags[bin]), uint64(bin) + 1
}

// findLarge is find for more than 1 MiB.
func (f *freeBlocks) findLarge(x *index, units uint64) (id uint32, found uint64) {
	bin := binOf(units)
	for k := *x.list(bin); k != 0; k = f.classes[k].next {
		if f.classes[k].units >= units {
			return f.first(&f.classes[k].blocks), f.classes[k].units
		}
	}
	return f.firstOf(x, x.from(bin+1))
}

// firstOf returns the first of the smallest blocks of a bin of several sizes, or 0 for bin -1.
func (f *freeBlocks) firstOf(x *index, bin int) (id uint32, found uint64) {
	if bin < 0 {
		return 0, 0
	}
	k := *x.list(bin)
	return f.first(&f.classes[k].blocks), f.classes[k].units
}

// list is where the first class of a bin of several sizes stands.
func (x *index) list(bin int) *uint32 { return &x.lists[(bin-exactBins)&(binCount-exactBins-1)] }

// insert files a free block of so many units. It spells out the common case of add, as remove does
// with take: calls are a good part of what placement costs. Both are told the size, which callers
// know before the record of the block has come.
func (f *freeBlocks) insert(x *index, b *block, id uint32, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		f.add(&f.classes[f.classFor(x, units)].blocks, b, id)
		return
	}
	x.set(uint(bin))
	g := &x.bags[bin]
	slot := g.count
	if slot == g.room {
		f.add(g, b, id)
		return
	}
	g.count = slot + 1
	f.keys[g.start+slot] = b.key(id)
	b.rest = uint64(Free) | uint64(slot)<<slotShift
}

// remove takes a free block of so many units out of its index. Whether it is the only one of its
// bin cannot be predicted, so the bits are written in any case: no branch depends on it.
func (f *freeBlocks) remove(x *index, b *block, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		f.removeLarge(x, b, units)
		return
	}
	g, slot := &x.bags[bin], b.slot()
	last := g.count - 1
	g.count = last
	x.clear(uint(bin), last)
	if slot < g.heaped || last+1 < g.room/4 {
		f.takeSlowly(g, slot)
		return
	}
	keys := f.keys
	key := keys[g.start+last]
	keys[g.start+slot] = key
	keys[g.start+last] = noKey
	f.blocks[key&idMask].rest = uint64(Free) | uint64(slot)<<slotShift
}

// removeLarge is remove for a block above 1 MiB.
func (f *freeBlocks) removeLarge(x *index, b *block, units uint64) {
	k := f.classOf(x, units)
	g := &f.classes[k].blocks
	if f.take(g, b.slot()); g.count == 0 {
		f.retire(x, k)
	}
}

// refile gives a free block a new place and size.
func (f *freeBlocks) refile(x *index, b *block, id uint32, place, units uint64) {
	was := b.units()
	if was > exactBins && f.stretch(x, b, id, place, units) {
		return
	}
	f.remove(x, b, was)
	b.moveTo(place, units)
	f.insert(x, b, id, units)
}

// stretch is refile for a block that is alone in its class and takes the class along. It reports
// false if the order in the bin does not allow it.
func (f *freeBlocks) stretch(x *index, b *block, id uint32, place, units uint64) bool {
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

// classOf returns the class of a size above 1 MiB that occurs.
func (f *freeBlocks) classOf(x *index, units uint64) uint32 {
	k := *x.list(binOf(units))
	for f.classes[k].units != units {
		k = f.classes[k].next
	}
	return k
}

// classFor returns the class of a size above 1 MiB, which it makes if need be.
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

// grabClass returns the number of an unused class, which has kept its room if it was used before.
// It may move the classes.
func (f *freeBlocks) grabClass() uint32 {
	if k := f.unused; k != 0 {
		f.unused = f.classes[k].next
		return k
	}
	f.classes = append(f.classes, class{})
	return uint32(len(f.classes) - 1)
}

// retire unlinks an empty class.
func (f *freeBlocks) retire(x *index, k uint32) {
	cl := &f.classes[k]
	if cl.prev != 0 {
		f.classes[cl.prev].next = cl.next
	} else {
		bin := binOf(cl.units)
		*x.list(bin) = cl.next
		x.clear(uint(bin), cl.next)
	}
	if cl.next != 0 {
		f.classes[cl.next].prev = cl.prev
	}
	cl.next = f.unused
	f.unused = k
}

// forgetFree forgets all classes and bags. The caller drops the indexes.
func (f *freeBlocks) forgetFree() {
	f.keys, f.classes = f.keys[:1], f.classes[:1]
	f.rooms, f.unused, f.credit = [32]uint32{}, 0, 0
}

// largest returns the size in bytes of the largest free block of an index.
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

// freeBytes sums the free blocks of an index. Its time grows with their number.
func (f *freeBlocks) freeBytes(x *index) int64 {
	var units int64
	for size, g := range f.eachClass(x) {
		units += int64(size) * int64(g.count)
	}
	return units << unitShift
}

// eachClass yields the classes of an index that hold blocks, as their sizes in units and their
// bags, by size.
func (f *freeBlocks) eachClass(x *index) iter.Seq2[uint64, *bag] {
	return func(yield func(uint64, *bag) bool) {
		for w := range x.words {
			for mask := x.words[w]; mask != 0; mask &= mask - 1 {
				if !f.eachOfBin(x, w<<6+bits.TrailingZeros64(mask), yield) {
					return
				}
			}
		}
	}
}

func (f *freeBlocks) eachOfBin(x *index, bin int, yield func(uint64, *bag) bool) bool {
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
