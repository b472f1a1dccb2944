package alloc

import (
	"iter"
	"math/bits"
)

// Up to 1 MiB, a bin has one size. Above that, 64 bins lie between powers of two.
const (
	exactBins = 2048 // bins with one size; also the largest of these sizes in units
	exactLog  = 11   // log2 of exactBins
	subLog    = 6    // log2 of the number of bins between two powers of two
	binCount  = 4096 // 64 words of 64 bits, summarized by one word
)

// A power of two is the last size of its bin, so that a new segment's free block stays in its bin
// when the first blocks are split off.
func binOf(units uint64) int {
	last := units - 1
	if last < exactBins {
		return int(last)
	}

	log := uint(bits.Len64(last)) - 1
	sub := int(last>>((log-subLog)&63)) & (1<<subLog - 1)
	return exactBins + int(log-exactLog)<<subLog + sub
}

// sizeIndex finds free blocks of one stream by size. A two-level bitmap records the nonempty bins.
type sizeIndex struct {
	bags         [exactBins]bag // first, so that no bag crosses a cache line
	summary      uint64
	words        [binCount / 64]uint64
	firstClasses [binCount - exactBins]uint32 // first class of each bin with several sizes
}

type sizeClass struct {
	units      uint64
	blocks     bag
	prev, next uint32 // neighbors in the bin; next also links unused classes
}

func (index *sizeIndex) markBinNonempty(bin uint) {
	word := bin >> 6 & 63
	index.words[word] |= 1 << (bin & 63)
	index.summary |= 1 << word
}

// clearBinIfEmpty avoids a branch, which would be unpredictable.
func (index *sizeIndex) clearBinIfEmpty(bin uint, blocks uint32) {
	word := bin >> 6 & 63
	w := index.words[word] ^ (uint64(blocks)-1)>>63<<(bin&63)
	index.words[word] = w
	index.summary ^= isZero(w) << word
}

// isZero returns 1 if n is 0, without a branch.
func isZero(n uint64) uint64 { return ^(n | -n) >> 63 }

// nextBin returns the first nonempty bin from bin on, or -1.
func (index *sizeIndex) nextBin(bin int) int {
	word := bin >> 6 & 63
	if mask := index.words[word] >> (bin & 63) << (bin & 63); mask != 0 {
		return word<<6 + bits.TrailingZeros64(mask)
	}

	summary := index.summary &^ (2<<word - 1)
	if summary == 0 {
		return -1
	}

	word = bits.TrailingZeros64(summary) & 63
	return word<<6 + bits.TrailingZeros64(index.words[word])
}

// findInIndex returns the smallest free block of at least units, and its size. Of equal blocks, it
// returns the lowest. It avoids reading the block's record, which is slow.
func (f *freeBlocks) findInIndex(index *sizeIndex, units uint64) (id uint32, foundUnits uint64) {
	f.searchCredit += creditStep
	if units > exactBins {
		return f.findLargeInIndex(index, units)
	}

	bin := index.nextBin(int(units) - 1)
	if uint(bin) >= exactBins {
		return f.lowestInBin(index, bin)
	}

	return f.lowestBlock(&index.bags[bin]), uint64(bin) + 1
}

func (f *freeBlocks) findLargeInIndex(
	index *sizeIndex, units uint64,
) (id uint32, foundUnits uint64) {
	bin := binOf(units)
	for k := *index.firstClass(bin); k != 0; k = f.classes[k].next {
		if f.classes[k].units >= units {
			return f.lowestBlock(&f.classes[k].blocks), f.classes[k].units
		}
	}

	return f.lowestInBin(index, index.nextBin(bin+1))
}

// lowestInBin returns the lowest block of the smallest size, and this size. It returns 0, 0 for bin
// -1.
func (f *freeBlocks) lowestInBin(index *sizeIndex, bin int) (id uint32, foundUnits uint64) {
	if bin < 0 {
		return 0, 0
	}

	k := *index.firstClass(bin)
	return f.lowestBlock(&f.classes[k].blocks), f.classes[k].units
}

func (index *sizeIndex) firstClass(bin int) *uint32 {
	return &index.firstClasses[(bin-exactBins)&(binCount-exactBins-1)]
}

// insertBlock contains a copy of addKey's common case, for speed.
func (f *freeBlocks) insertBlock(index *sizeIndex, b *block, id uint32, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		f.addKey(&f.classes[f.ensureClass(index, units)].blocks, b, id)
		return
	}

	index.markBinNonempty(uint(bin))
	bag := &index.bags[bin]
	slot := bag.count
	if slot == bag.capacity {
		f.addKey(bag, b, id)
		return
	}

	bag.count = slot + 1
	f.keys[bag.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<valueShift
}

// removeBlock contains a copy of removeKey's common case, for speed.
func (f *freeBlocks) removeBlock(index *sizeIndex, b *block, units uint64) {
	bin := units - 1
	if bin >= exactBins {
		f.removeLargeBlock(index, b, units)
		return
	}

	bag, slot := &index.bags[bin], b.slot()
	last := bag.count - 1
	bag.count = last
	index.clearBinIfEmpty(uint(bin), last)
	if slot < bag.heapCount || last+1 < bag.capacity/4 {
		f.finishRemoval(bag, slot)
		return
	}

	keys := f.keys
	key := keys[bag.start+last]
	keys[bag.start+slot] = key
	keys[bag.start+last] = noKey
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<valueShift
}

func (f *freeBlocks) removeLargeBlock(index *sizeIndex, b *block, units uint64) {
	k := f.findClass(index, units)
	bag := &f.classes[k].blocks
	if f.removeKey(bag, b.slot()); bag.count == 0 {
		f.dropClass(index, k)
	}
}

// moveInIndex changes a free block's start (positionAndRegion) and size.
func (f *freeBlocks) moveInIndex(index *sizeIndex, b *block, id uint32, start, units uint64) {
	oldUnits := b.units()
	if oldUnits > exactBins && f.tryResizeInPlace(index, b, id, start, units) {
		return
	}

	f.removeBlock(index, b, oldUnits)
	b.setRange(start, units)
	f.insertBlock(index, b, id, units)
}

// tryResizeInPlace returns false, without a change, if other blocks have the old size or the class
// would have to move.
func (f *freeBlocks) tryResizeInPlace(
	index *sizeIndex, b *block, id uint32, start, units uint64,
) bool {
	cl := &f.classes[f.findClass(index, b.units())]
	if cl.blocks.count != 1 || units <= exactBins ||
		binOf(b.units()) != binOf(units) ||
		cl.prev != 0 && f.classes[cl.prev].units >= units ||
		cl.next != 0 && f.classes[cl.next].units <= units {
		return false
	}

	cl.units = units
	b.setRange(start, units)
	f.keys[cl.blocks.start] = b.key(id)
	return true
}

func (f *freeBlocks) findClass(index *sizeIndex, units uint64) uint32 {
	k := *index.firstClass(binOf(units))
	for f.classes[k].units != units {
		k = f.classes[k].next
	}

	return k
}

func (f *freeBlocks) ensureClass(index *sizeIndex, units uint64) uint32 {
	bin := binOf(units)
	prev, next := uint32(0), *index.firstClass(bin)
	for next != 0 && f.classes[next].units < units {
		prev, next = next, f.classes[next].next
	}

	if next != 0 && f.classes[next].units == units {
		return next
	}

	k := f.newClass()
	cl := &f.classes[k]
	cl.units, cl.prev, cl.next = units, prev, next
	if next != 0 {
		f.classes[next].prev = k
	}

	if prev != 0 {
		f.classes[prev].next = k
	} else {
		*index.firstClass(bin) = k
		index.markBinNonempty(uint(bin))
	}

	return k
}

// newClass may reallocate f.classes. The new bag may have an array.
func (f *freeBlocks) newClass() uint32 {
	if k := f.firstUnusedClass; k != 0 {
		f.firstUnusedClass = f.classes[k].next
		return k
	}

	f.classes = append(f.classes, sizeClass{})
	return uint32(len(f.classes) - 1)
}

func (f *freeBlocks) dropClass(index *sizeIndex, k uint32) {
	cl := &f.classes[k]
	if cl.prev != 0 {
		f.classes[cl.prev].next = cl.next
	} else {
		bin := binOf(cl.units)
		*index.firstClass(bin) = cl.next
		index.clearBinIfEmpty(uint(bin), cl.next)
	}

	if cl.next != 0 {
		f.classes[cl.next].prev = cl.prev
	}

	cl.next = f.firstUnusedClass
	f.firstUnusedClass = k
}

// The caller of dropAllClasses must drop the indexes that refer to them.
func (f *freeBlocks) dropAllClasses() {
	f.keys, f.classes = f.keys[:1], f.classes[:1]
	f.unusedArrays, f.firstUnusedClass, f.searchCredit = [32]uint32{}, 0, 0
}

func (f *freeBlocks) largestBlock(index *sizeIndex) int64 {
	if index.summary == 0 {
		return 0
	}

	word := bits.Len64(index.summary) - 1
	bin := word<<6 + bits.Len64(index.words[word]) - 1
	if bin < exactBins {
		return int64(bin+1) << unitShift
	}

	k := *index.firstClass(bin)
	for f.classes[k].next != 0 {
		k = f.classes[k].next
	}

	return int64(f.classes[k].units) << unitShift
}

func (f *freeBlocks) freeBytes(index *sizeIndex) int64 {
	var units int64
	for size, bag := range f.eachClass(index) {
		units += int64(size) * int64(bag.count)
	}

	return units << unitShift
}

// eachClass yields the sizes and bags of nonempty classes, by size.
func (f *freeBlocks) eachClass(index *sizeIndex) iter.Seq2[uint64, *bag] {
	return func(yield func(uint64, *bag) bool) {
		for w := range index.words {
			for mask := index.words[w]; mask != 0; mask &= mask - 1 {
				if !f.classesOfBin(index, w<<6+bits.TrailingZeros64(mask), yield) {
					return
				}
			}
		}
	}
}

func (f *freeBlocks) classesOfBin(index *sizeIndex, bin int, yield func(uint64, *bag) bool) bool {
	if bin < exactBins {
		return yield(uint64(bin)+1, &index.bags[bin])
	}

	for k := *index.firstClass(bin); k != 0; k = f.classes[k].next {
		if !yield(f.classes[k].units, &f.classes[k].blocks) {
			return false
		}
	}

	return true
}
