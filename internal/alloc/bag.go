package alloc

import "math/bits"

// bag holds the keys of free blocks of one stream and size. Keys sort by position, see block.key.
// The first heapCount keys form a binary min-heap. The remaining keys, the tail, are unsorted, to
// keep insertion and most removals cheap.
type bag struct {
	start     uint32 // index of the first key in freeBlocks.keys
	capacity  uint32 // in keys: a power of two, or 0
	count     uint32
	heapCount uint32
}

// A search reads the root of the heap and the whole tail. It earns a credit of creditStep and pays
// 1 for each key of the tail. If the credit is used up, it moves the tail into the heap.
const (
	creditStep = 4
	maxCredit  = 1024
)

// noKey fills the unused slots of a bag. It exceeds all keys.
const noKey = ^uint64(0)

// smallCapacity is the lowest capacity above 0. In bags of this capacity, a search reads all slots,
// to avoid branches on the count.
const smallCapacity = 4

// freeBlocks holds the keys of all bags, and the bags for sizes above 1 MiB. The other bags are in
// sizeIndex.
type freeBlocks struct {
	blockTable
	keys []uint64 // the arrays of all bags; keys[0] is unused
	// unusedArrays[n] is the start of an unused array of 1<<n keys, or 0. The first key of an unused
	// array is the start of the next one, or 0.
	unusedArrays     [32]uint32
	searchCredit     int         // shared by all bags
	classes          []sizeClass // by class id; entry 0 is unused
	firstUnusedClass uint32      // head of a free list of class ids, or 0
}

// addKey appends the key of a block to the tail of a bag, and marks the block as free.
func (f *freeBlocks) addKey(bag *bag, b *block, id uint32) {
	slot := bag.count
	if slot == bag.capacity {
		f.resizeBag(bag, max(2*slot, smallCapacity))
	}

	bag.count = slot + 1
	f.keys[bag.start+slot] = b.key(id)
	b.markFree(slot)
}

func (f *freeBlocks) removeKey(bag *bag, slot uint32) {
	isInHeap := slot < bag.heapCount
	isSparse := bag.count < bag.capacity/4
	last := bag.count - 1
	bag.count = last
	if isInHeap || isSparse {
		f.finishRemoval(bag, slot)
		return
	}

	keys := f.keys
	key := keys[bag.start+last]
	keys[bag.start+slot] = key
	keys[bag.start+last] = noKey
	f.blocks[key&idMask].markFree(slot)
}

// finishRemoval removes a key after the caller has decremented bag.count. It halves the capacity of
// a bag that was less than a quarter full.
func (f *freeBlocks) finishRemoval(bag *bag, slot uint32) {
	last := bag.count
	wasSparse := last+1 < bag.capacity/4
	if slot < bag.heapCount {
		f.removeFromHeap(bag, slot)
	} else {
		f.setSlot(bag, slot, f.keys[bag.start+last])
	}

	f.keys[bag.start+last] = noKey
	if wasSparse {
		f.resizeBag(bag, bag.capacity/2)
	}
}

// removeFromHeap replaces the key at slot by the last key of the heap, and that key by the last key
// of the tail. The caller has decremented bag.count.
func (f *freeBlocks) removeFromHeap(bag *bag, slot uint32) {
	lastOfHeap, last := bag.heapCount-1, bag.count // slots
	bag.heapCount = lastOfHeap
	if slot != lastOfHeap {
		key := f.keys[bag.start+lastOfHeap]
		isLowerThanParent := slot > 0 && key < f.keys[bag.start+parentOf(slot)]
		if isLowerThanParent {
			f.siftUp(bag, slot, key)
		} else {
			f.siftDown(bag, slot, key)
		}
	}

	hasTail := lastOfHeap < last
	if hasTail {
		f.setSlot(bag, lastOfHeap, f.keys[bag.start+last])
	}
}

func (f *freeBlocks) setSlot(bag *bag, slot uint32, key uint64) {
	f.keys[bag.start+slot] = key
	f.blocks[key&idMask].markFree(slot)
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
	lowestKey := keys[0] // lowest of the heap, or first of the tail
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

func parentOf(slot uint32) uint32 { return (slot - 1) / 2 }

// siftUp stores a key at or above the given slot of the heap. Higher parents move down.
func (f *freeBlocks) siftUp(bag *bag, slot uint32, key uint64) {
	for slot > 0 {
		parent := parentOf(slot)
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

	if bag.capacity > 0 {
		f.recycleArray(bag.start, bag.capacity)
	}

	bag.start, bag.capacity = start, capacity
}

// unusedArraysOf returns the head of the free list for a capacity, which is a power of two.
func unusedArraysOf(f *freeBlocks, capacity uint32) *uint32 {
	return &f.unusedArrays[bits.TrailingZeros32(capacity)&31] // &31 avoids a bounds check
}

// allocArray returns the start of an array with undefined contents.
func (f *freeBlocks) allocArray(capacity uint32) uint32 {
	head := unusedArraysOf(f, capacity)
	start := *head
	if start != 0 {
		*head = uint32(f.keys[start]) // the next unused array
		return start
	}

	start = uint32(len(f.keys))
	f.keys = append(f.keys, make([]uint64, capacity)...)
	return start
}

func (f *freeBlocks) recycleArray(start, capacity uint32) {
	head := unusedArraysOf(f, capacity)
	f.keys[start] = uint64(*head)
	*head = start
}
