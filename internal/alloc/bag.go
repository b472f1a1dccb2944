package alloc

import "math/bits"

// bag is a priority queue for the free blocks of one stream and size. A block's key has its
// position in the high bits and its id in the low bits. The first heapCount keys form a binary
// min-heap. The rest, the tail, is unsorted, which keeps insertion and most removals cheap.
type bag struct {
	start     uint32 // index of the first key in freeBlocks.keys
	capacity  uint32 // in keys: a power of two, or 0
	count     uint32
	heapCount uint32
}

// A search reads the root of the heap and the whole tail. It earns creditStep, in findInIndex, and
// pays for each key of the tail. When the credit runs out, a search moves the tail into the heap.
const (
	creditStep = 4
	maxCredit  = 1024
)

// noKey fills the slots after the last key, so that it never is the minimum.
const noKey = ^uint64(0)

// smallCapacity is the lowest capacity above 0. A search reads all slots of so small a bag, because
// branches on the counts would be unpredictable.
const smallCapacity = 4

// freeBlocks holds the keys of all bags, and the bags for sizes above 1 MiB.
type freeBlocks struct {
	blockTable
	keys []uint64 // bags own disjoint ranges of it; keys[0] is unused
	// unusedArrays holds free lists of ranges. List n has ranges of 1<<n keys. The first key of a
	// range is the start of the next one, or 0.
	unusedArrays     [32]uint32
	searchCredit     int         // shared by all bags
	classes          []sizeClass // sizes above 1 MiB, by id; id 0 means none
	firstUnusedClass uint32      // head of a free list of class ids, or 0
}

// addKey adds a block to the tail, and stores the slot of its key in the block's record.
func (f *freeBlocks) addKey(bag *bag, b *block, id uint32) {
	slot := bag.count
	if slot == bag.capacity {
		f.resizeBag(bag, max(2*slot, smallCapacity))
	}

	bag.count = slot + 1
	f.keys[bag.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<slotShift
}

func (f *freeBlocks) removeKey(bag *bag, slot uint32) {
	isInHeap := slot < bag.heapCount
	isSparse := bag.count < bag.capacity/4
	last := bag.count - 1
	bag.count = last
	if isInHeap || isSparse {
		f.removeHeapKeyOrShrink(bag, slot)
		return
	}

	keys := f.keys
	key := keys[bag.start+last]
	keys[bag.start+slot] = key
	keys[bag.start+last] = noKey
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// removeHeapKeyOrShrink expects bag.count to be decremented already. It halves a bag that was less
// than a quarter full.
func (f *freeBlocks) removeHeapKeyOrShrink(bag *bag, slot uint32) {
	last := bag.count // slot of the last key
	if slot < bag.heapCount {
		f.removeFromHeap(bag, slot)
	} else {
		f.setSlot(bag, slot, f.keys[bag.start+last])
	}

	f.keys[bag.start+last] = noKey
	oldCount := last + 1
	if oldCount < bag.capacity/4 {
		f.resizeBag(bag, bag.capacity/2)
	}
}

// removeFromHeap expects bag.count to be decremented already.
func (f *freeBlocks) removeFromHeap(bag *bag, slot uint32) {
	bag.heapCount--
	lastOfHeap, last := bag.heapCount, bag.count
	if slot != lastOfHeap {
		key := f.keys[bag.start+lastOfHeap] // replaces the removed key
		isLowerThanParent := slot > 0 && key < f.keys[bag.start+(slot-1)/2]
		if isLowerThanParent {
			f.siftUp(bag, slot, key)
		} else {
			f.siftDown(bag, slot, key)
		}
	}

	hasTail := lastOfHeap < last
	if hasTail { // its last key fills the gap after the heap
		f.setSlot(bag, lastOfHeap, f.keys[bag.start+last])
	}
}

// setSlot stores a key, and its slot in the block's record.
func (f *freeBlocks) setSlot(bag *bag, slot uint32, key uint64) {
	f.keys[bag.start+slot] = key
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// lowestBlock returns the id of the block with the lowest position. The bag must not be empty.
func (f *freeBlocks) lowestBlock(bag *bag) uint32 {
	if bag.capacity == smallCapacity {
		keys := (*[smallCapacity]uint64)(f.keys[bag.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}

	return f.lowestInLargeBag(bag)
}

func (f *freeBlocks) lowestInLargeBag(bag *bag) uint32 {
	tailCount := int(bag.count - bag.heapCount)
	f.searchCredit = min(f.searchCredit, maxCredit) - tailCount
	if f.searchCredit < 0 {
		f.moveTailToHeap(bag)
	}

	keys := f.keys[bag.start:][:bag.count]
	lowestKey := keys[0]
	for slot := bag.heapCount; slot < uint32(len(keys)); slot++ {
		lowestKey = min(lowestKey, keys[slot])
	}

	return uint32(lowestKey & idMask)
}

func (f *freeBlocks) moveTailToHeap(bag *bag) {
	f.searchCredit = 0
	for bag.heapCount < bag.count {
		slot := bag.heapCount
		bag.heapCount++
		f.siftUp(bag, slot, f.keys[bag.start+slot])
	}
}

// siftUp stores a key at or above the given slot of the heap. Higher parents move down.
func (f *freeBlocks) siftUp(bag *bag, slot uint32, key uint64) {
	for slot > 0 {
		parent := (slot - 1) / 2
		if f.keys[bag.start+parent] <= key {
			break
		}

		f.setSlot(bag, slot, f.keys[bag.start+parent])
		slot = parent
	}

	f.setSlot(bag, slot, key)
}

// siftDown stores a key at or below the given slot of the heap. Lower children move up.
func (f *freeBlocks) siftDown(bag *bag, slot uint32, key uint64) {
	heap := f.keys[bag.start : bag.start+bag.heapCount]
	for {
		child, secondChild := 2*slot+1, 2*slot+2
		if child >= bag.heapCount {
			break
		}

		if secondChild < bag.heapCount && heap[secondChild] < heap[child] {
			child = secondChild
		}

		if heap[child] >= key {
			break
		}

		f.setSlot(bag, slot, heap[child])
		slot = child
	}

	f.setSlot(bag, slot, key)
}

func (f *freeBlocks) resizeBag(bag *bag, capacity uint32) {
	start := f.allocArray(capacity)
	keys := f.keys[start : start+capacity]
	copied := copy(keys, f.keys[bag.start:bag.start+bag.count])
	for i := copied; i < len(keys); i++ {
		keys[i] = noKey
	}

	if bag.capacity > 0 { // add the old array to a free list
		firstArray := &f.unusedArrays[bits.TrailingZeros32(bag.capacity)&31] // see allocArray
		f.keys[bag.start] = uint64(*firstArray)
		*firstArray = bag.start
	}

	bag.start, bag.capacity = start, capacity
}

// allocArray returns the start of an array, whose contents are undefined.
func (f *freeBlocks) allocArray(capacity uint32) uint32 {
	firstArray := &f.unusedArrays[bits.TrailingZeros32(capacity)&31] // &31 avoids a bounds check
	start := *firstArray
	if start != 0 {
		*firstArray = uint32(f.keys[start]) // the next unused array
		return start
	}

	start = uint32(len(f.keys))
	f.keys = append(f.keys, make([]uint64, capacity)...)
	return start
}
