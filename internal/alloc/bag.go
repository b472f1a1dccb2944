package alloc

import "math/bits"

// Among a stream's free blocks of one size, Alloc takes the lowest: the one with the lowest
// position. Suppose that three free blocks have this size, with the positions 300, 100 and 200:
//
//   - They are in a bag. It stores each block as a key: a number with the block's position in the
//     high bits and its id in the low bits. So the block at position 100 has the lowest key.
//   - The keys are in an array. The index of a key is its slot. The block's record contains the
//     slot too, so that the key can be removed without a search.
//   - The first keys of the array form a heap: a binary tree in which no key is lower than its
//     parent, so that slot 0 has the lowest key. The key in slot i is the parent of those in the
//     slots 2*i+1 and 2*i+2.
//   - The other keys form the tail, which has no order. A search reads slot 0 and the whole tail.
//
// A new key becomes the last of the tail. This is cheap. So is a removal from the tail: the last
// key moves to the slot of the removed one. But long tails make searches slow. Therefore, a search
// sometimes moves all keys of the tail into the heap. A credit decides when: every search adds
// creditStep to it, and a search that reads a tail subtracts the number of keys in the tail. The
// search that makes the credit negative moves the keys.

const (
	creditStep = 4
	maxCredit  = 1024 // limits the credit, which grows while tails have fewer than creditStep keys
)

// bag holds the free blocks of one stream and size.
type bag struct {
	start     uint32 // index in freeBlocks.keys at which the array begins
	capacity  uint32 // length of the array: a power of two, or 0
	count     uint32 // number of keys
	heapCount uint32 // number of keys in the heap
}

// noKey fills the slots after the last key. It is above all keys.
const noKey = ^uint64(0)

// smallCapacity is the lowest capacity of an array. In such a small bag, a search reads all four
// slots instead of slot 0 and the tail, because branches on the counts would be unpredictable.
const smallCapacity = 4

// freeBlocks holds the keys of all bags, and the bags of sizes above 1 MiB. The indexes hold the
// other bags.
type freeBlocks struct {
	blockTable
	keys []uint64 // contains the arrays of all bags; keys[0] is unused
	// unusedArrays lists the arrays that bags have replaced by larger or smaller ones. The element n
	// is the start of the first unused array of 1<<n keys, or 0. The first key of an unused array is
	// the start of the next one.
	unusedArrays     [32]uint32
	searchCredit     int         // shared by all bags
	classes          []sizeClass // with one bag each, by id; id 0 means none
	firstUnusedClass uint32      // id of the first class in a list of unused ones, or 0
}

// addKey adds the key of block b, which has the given id, to the tail.
func (f *freeBlocks) addKey(bag *bag, b *block, id uint32) {
	slot := bag.count
	if slot == bag.capacity {
		f.resizeBag(bag, max(2*slot, smallCapacity))
	}

	bag.count = slot + 1
	f.keys[bag.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<slotShift
}

// removeKey removes the key in a slot.
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

// removeHeapKeyOrShrink removes the key in a slot, and halves the capacity if the bag was less than
// a quarter full. The caller must have decremented bag.count, so that it is the last key's slot.
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

// removeFromHeap removes the key in a slot of the heap. The caller must have decremented bag.count,
// so that it is the last key's slot.
func (f *freeBlocks) removeFromHeap(bag *bag, slot uint32) {
	bag.heapCount-- // is now the slot of the heap's last key, which replaces the removed one
	if slot != bag.heapCount {
		key := f.keys[bag.start+bag.heapCount]
		isLowerThanParent := slot > 0 && f.keys[bag.start+(slot-1)/2] > key
		if isLowerThanParent {
			f.siftUp(bag, slot, key)
		} else {
			f.siftDown(bag, slot, key)
		}
	}

	hasTail := bag.heapCount < bag.count
	if hasTail { // the last key of the tail fills the slot after the heap
		f.setSlot(bag, bag.heapCount, f.keys[bag.start+bag.count])
	}
}

// setSlot stores a key in a slot, and the slot in the record of the key's block.
func (f *freeBlocks) setSlot(bag *bag, slot uint32, key uint64) {
	f.keys[bag.start+slot] = key
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// lowestBlock returns the id of the lowest block in a bag, which must not be empty.
func (f *freeBlocks) lowestBlock(bag *bag) uint32 {
	if bag.capacity == smallCapacity {
		keys := (*[smallCapacity]uint64)(f.keys[bag.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}

	return f.lowestInLargeBag(bag)
}

// lowestInLargeBag is lowestBlock for a bag with more than smallCapacity slots.
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

// moveTailToHeap makes all keys of the tail part of the heap, and resets the credit.
func (f *freeBlocks) moveTailToHeap(bag *bag) {
	f.searchCredit = 0
	for bag.heapCount < bag.count {
		slot := bag.heapCount
		bag.heapCount++
		f.siftUp(bag, slot, f.keys[bag.start+slot])
	}
}

// siftUp stores a key in the heap, in the given slot or above. Parents with higher keys move down.
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

// siftDown stores a key in the heap, in the given slot or below. Children with lower keys move up.
func (f *freeBlocks) siftDown(bag *bag, slot uint32, key uint64) {
	heap := f.keys[bag.start : bag.start+bag.heapCount]
	for {
		child := 2*slot + 1 // the first of two
		if child >= bag.heapCount {
			break
		}

		if child+1 < bag.heapCount && heap[child+1] < heap[child] {
			child++ // the second has the lower key
		}

		if heap[child] >= key {
			break
		}

		f.setSlot(bag, slot, heap[child])
		slot = child
	}

	f.setSlot(bag, slot, key)
}

// resizeBag moves the keys of a bag to an array of another capacity, which is a power of two.
func (f *freeBlocks) resizeBag(bag *bag, capacity uint32) {
	start := f.allocArray(capacity)
	keys := f.keys[start : start+capacity]
	copied := copy(keys, f.keys[bag.start:bag.start+bag.count])
	for i := copied; i < len(keys); i++ {
		keys[i] = noKey
	}

	if bag.capacity > 0 { // the old array becomes the first unused one of its length
		firstArray := &f.unusedArrays[bits.TrailingZeros32(bag.capacity)&31]
		f.keys[bag.start] = uint64(*firstArray)
		*firstArray = bag.start
	}

	bag.start, bag.capacity = start, capacity
}

// allocArray returns the start of an array of the given length. The array can contain old keys.
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
