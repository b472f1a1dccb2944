package alloc

import "math/bits"

// freeBlocks holds the sets of free blocks. There is one set, a bag, for each size.
type freeBlocks struct {
	blockTable
	keys []uint64 // the arrays of all bags; keys[0] is unused
	// unusedArrays[n] is the start of the first unused array of 1<<n keys, or 0. The first key of
	// an unused array holds the start of the next one.
	unusedArrays     [32]uint32
	searchCredit     int         // see creditStep
	classes          []sizeClass // classes of large sizes, by id; id 0 means no class
	firstUnusedClass uint32      // id of the first class in a list of unused ones, or 0
}

// bag holds the free blocks of one size, as an array of keys, which is a part of freeBlocks.keys.
// Blocks with lower positions have lower keys (see block.key). Each block records its slot, the
// index of its key in the array. If a key is removed, the last key of the array moves to its slot.
//
// The keys in the first heapCount slots form a binary heap with the lowest key in slot 0. The other
// keys form the tail, which has no order. A search for the lowest block reads the root of the heap
// and the whole tail.
//
// Unused slots contain noKey, which is above all keys. In the smallest bags, a search reads all
// slots, because a branch on count would be unpredictable.
type bag struct {
	start     uint32 // index of the array in freeBlocks.keys
	capacity  uint32 // length of the array: a power of two, or 0
	count     uint32 // number of keys
	heapCount uint32 // number of keys in the heap
}

// minBagCapacity is the capacity of the smallest bags, for which lowestBlock needs no loop.
const minBagCapacity = 4

const noKey = ^uint64(0)

// New keys are added to the tail, because removals from the heap are expensive. The tail moves into
// the heap once searches have read too many of its keys: each search adds creditStep to
// searchCredit, and a search in a large bag subtracts the length of the tail. A negative result
// moves the tail. maxCredit limits the credit that short searches can save.
const (
	creditStep = 4
	maxCredit  = 1024
)

// addKey adds the key of b, the block with the given id, to a bag.
func (f *freeBlocks) addKey(bag *bag, b *block, id uint32) {
	slot := bag.count
	if slot == bag.capacity {
		f.resizeBag(bag, max(2*slot, minBagCapacity))
	}

	bag.count = slot + 1
	f.keys[bag.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<slotShift
}

// removeKey removes the key in a slot. In the common case, the last key moves to the slot.
func (f *freeBlocks) removeKey(bag *bag, slot uint32) {
	last := bag.count - 1
	bag.count = last
	isInHeap := slot < bag.heapCount
	isNearlyEmpty := last+1 < bag.capacity/4
	if isInHeap || isNearlyEmpty {
		f.removeHeapKeyOrShrink(bag, slot)
		return
	}

	keys := f.keys
	key := keys[bag.start+last]
	keys[bag.start+slot] = key
	keys[bag.start+last] = noKey
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// removeHeapKeyOrShrink removes the key in a slot. It halves the bag's capacity if the bag is
// nearly empty. The caller must have decremented bag.count.
func (f *freeBlocks) removeHeapKeyOrShrink(bag *bag, slot uint32) {
	if slot < bag.heapCount {
		f.removeFromHeap(bag, slot)
	} else {
		f.setSlot(bag, slot, f.keys[bag.start+bag.count])
	}

	f.keys[bag.start+bag.count] = noKey
	if bag.count+1 < bag.capacity/4 {
		f.resizeBag(bag, bag.capacity/2)
	}
}

// removeFromHeap removes the key in a slot of the heap. The last key of the heap replaces it, and
// the last key of the tail moves to the slot after the heap. The caller must have decremented
// bag.count.
func (f *freeBlocks) removeFromHeap(bag *bag, slot uint32) {
	bag.heapCount--
	if slot != bag.heapCount {
		key := f.keys[bag.start+bag.heapCount]
		isBelowParent := slot > 0 && f.keys[bag.start+(slot-1)/2] > key
		if isBelowParent {
			f.siftUp(bag, slot, key)
		} else {
			f.siftDown(bag, slot, key)
		}
	}

	hasTail := bag.heapCount < bag.count
	if hasTail {
		f.setSlot(bag, bag.heapCount, f.keys[bag.start+bag.count])
	}
}

// setSlot stores a key in a slot and the slot in the key's block.
func (f *freeBlocks) setSlot(bag *bag, slot uint32, key uint64) {
	f.keys[bag.start+slot] = key
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// lowestBlock returns the id of the block with the lowest position in a bag, which must not be
// empty.
func (f *freeBlocks) lowestBlock(bag *bag) uint32 {
	if bag.capacity == minBagCapacity {
		keys := (*[minBagCapacity]uint64)(f.keys[bag.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}

	return f.lowestInLargeBag(bag)
}

func (f *freeBlocks) lowestInLargeBag(bag *bag) uint32 {
	tailCount := int(bag.count - bag.heapCount)
	f.searchCredit = min(f.searchCredit, maxCredit) - tailCount
	if f.searchCredit < 0 {
		f.heapifyTail(bag)
	}

	keys := f.keys[bag.start:][:bag.count]
	lowestKey := keys[0]
	for i := bag.heapCount; i < uint32(len(keys)); i++ {
		lowestKey = min(lowestKey, keys[i])
	}

	return uint32(lowestKey & idMask)
}

// heapifyTail moves all keys of the tail into the heap.
func (f *freeBlocks) heapifyTail(bag *bag) {
	f.searchCredit = 0
	for bag.heapCount < bag.count {
		slot := bag.heapCount
		bag.heapCount++
		f.siftUp(bag, slot, f.keys[bag.start+slot])
	}
}

// siftUp stores a key in a slot of the heap, or in one of its ancestors if these have higher keys,
// which then move down.
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

// siftDown stores a key in a slot of the heap, or in one of its descendants if these have lower
// keys, which then move up.
func (f *freeBlocks) siftDown(bag *bag, slot uint32, key uint64) {
	heap := f.keys[bag.start : bag.start+bag.heapCount]
	for {
		child := 2*slot + 1 // the first of two
		if child >= bag.heapCount {
			break
		}

		if child+1 < bag.heapCount && heap[child+1] < heap[child] {
			child++
		}

		if heap[child] >= key {
			break
		}

		f.setSlot(bag, slot, heap[child])
		slot = child
	}

	f.setSlot(bag, slot, key)
}

// resizeBag moves a bag's keys to an array of the given capacity, a power of two.
func (f *freeBlocks) resizeBag(bag *bag, capacity uint32) {
	start := f.allocKeys(capacity)
	keys := f.keys[start : start+capacity]
	copied := copy(keys, f.keys[bag.start:bag.start+bag.count])
	for i := copied; i < len(keys); i++ {
		keys[i] = noKey
	}

	if bag.capacity > 0 { // the old array becomes the first unused one of its size
		firstArray := &f.unusedArrays[bits.TrailingZeros32(bag.capacity)&31]
		f.keys[bag.start] = uint64(*firstArray)
		*firstArray = bag.start
	}

	bag.start, bag.capacity = start, capacity
}

// allocKeys returns the start of an array of keys. It reuses an unused array if there is one, and
// does not clear it.
func (f *freeBlocks) allocKeys(capacity uint32) uint32 {
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
