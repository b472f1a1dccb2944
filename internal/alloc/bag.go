package alloc

import "math/bits"

type freeBlocks struct {
	blockTable
	keys             []uint64 // the bags' arrays; keys[0] is unused
	unusedArrays     [32]uint32
	searchCredit     int         // see creditStep
	classes          []sizeClass // index 0 means no class
	firstUnusedClass uint32
}

// bag holds the free blocks of one size, as keys in a part of freeBlocks.keys. Blocks with lower
// positions have lower keys. Each block records the slot of its key. A removed key is replaced by
// the last one.
//
// The first keys form a heap, the others its tail. A search for the lowest block reads the root of
// the heap and the whole tail.
//
// Unused slots contain noKey, above all keys. In the smallest bags, a search reads all slots,
// because a branch on count would be unpredictable.
type bag struct {
	start     uint32 // first slot in freeBlocks.keys
	capacity  uint32 // a power of two, or 0
	count     uint32
	heapCount uint32
}

const minBagCapacity = 4

const noKey = ^uint64(0)

// A removal from the heap is expensive, so keys stay in the tail until searches have read many of
// them. Each search adds creditStep to searchCredit and subtracts the length of the tail.
const (
	creditStep = 4
	maxCredit  = 1024
)

func (f *freeBlocks) addKey(bag *bag, b *block, id uint32) {
	slot := bag.count
	if slot == bag.capacity {
		f.resizeBag(bag, max(2*slot, minBagCapacity))
	}
	bag.count = slot + 1
	f.keys[bag.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<slotShift
}

func (f *freeBlocks) removeKey(bag *bag, slot uint32) {
	last := bag.count - 1
	bag.count = last
	if slot < bag.heapCount || last+1 < bag.capacity/4 {
		f.removeHeapKeyOrShrink(bag, slot)
		return
	}
	keys := f.keys
	key := keys[bag.start+last]
	keys[bag.start+slot] = key
	keys[bag.start+last] = noKey
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// removeHeapKeyOrShrink requires that bag.count has been decremented.
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

// removeFromHeap requires that bag.count has been decremented.
func (f *freeBlocks) removeFromHeap(bag *bag, slot uint32) {
	bag.heapCount--
	key := f.keys[bag.start+bag.heapCount]
	switch {
	case slot == bag.heapCount:
	case slot > 0 && f.keys[bag.start+(slot-1)/2] > key:
		f.siftUp(bag, slot, key)
	default:
		f.siftDown(bag, slot, key)
	}
	if bag.heapCount < bag.count {
		f.setSlot(bag, bag.heapCount, f.keys[bag.start+bag.count])
	}
}

func (f *freeBlocks) setSlot(bag *bag, slot uint32, key uint64) {
	f.keys[bag.start+slot] = key
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

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

func (f *freeBlocks) heapifyTail(bag *bag) {
	f.searchCredit = 0
	for bag.heapCount < bag.count {
		bag.heapCount++
		f.siftUp(bag, bag.heapCount-1, f.keys[bag.start+bag.heapCount-1])
	}
}

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

func (f *freeBlocks) siftDown(bag *bag, slot uint32, key uint64) {
	heap := f.keys[bag.start : bag.start+bag.heapCount]
	for child := 2*slot + 1; child < bag.heapCount; child = 2*slot + 1 {
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

func (f *freeBlocks) resizeBag(bag *bag, capacity uint32) {
	start := f.allocKeys(capacity)
	keys := f.keys[start : start+capacity]
	for i := copy(keys, f.keys[bag.start:bag.start+bag.count]); i < len(keys); i++ {
		keys[i] = noKey
	}
	if bag.capacity > 0 {
		firstArray := &f.unusedArrays[bits.TrailingZeros32(bag.capacity)&31]
		f.keys[bag.start] = uint64(*firstArray)
		*firstArray = bag.start
	}
	bag.start, bag.capacity = start, capacity
}

func (f *freeBlocks) allocKeys(capacity uint32) uint32 {
	firstArray := &f.unusedArrays[bits.TrailingZeros32(capacity)&31]
	start := *firstArray
	if start != 0 {
		*firstArray = uint32(f.keys[start])
		return start
	}
	start = uint32(len(f.keys))
	f.keys = append(f.keys, make([]uint64, capacity)...)
	return start
}
