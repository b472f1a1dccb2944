package alloc

import "math/bits"

// freeBlocks indexes the free blocks of a Core by size.
type freeBlocks struct {
	slab
	keys      []uint64   // backing store of all bags' arrays; keys[0] is unused
	spareKeys [32]uint32 // heads of the lists of unused arrays in keys, by log2 of their capacity
	credit    int        // number of tail keys that searches may still visit; see creditStep
	classes   []class    // by number; index 0 is reserved and means no class
	unused    uint32     // first unused class
}

// bag holds the free blocks of one size. It stores one key for each block, in an array that is a
// part of freeBlocks.keys. Keys compare like the positions of their blocks, and each block records
// the slot of its key. To remove a key, the bag moves its last key into the slot, so that only one
// other block's record changes.
//
// The first keys form a heap. The remaining keys, called the tail, are unordered. New keys are
// appended to the tail. Only a search for the lowest block compares keys: it reads the root of the
// heap and the whole tail. If the tail is too long, the search first moves it into the heap. The
// key of a block that merges soon after its Free is therefore never compared.
//
// Unused slots contain noKey, which is above all keys. Most bags have the smallest capacity. A
// search in such a bag reads all slots, because a branch on the number of blocks would be
// unpredictable.
type bag struct {
	start    uint32 // index of the bag's first slot in freeBlocks.keys
	capacity uint32 // number of slots: a power of two, or 0 if the bag has no array
	count    uint32 // number of keys
	heaped   uint32 // number of keys in the heap
}

const minBagCapacity = 4

const noKey = ^uint64(0)

// Removing a key from a heap is expensive, and most keys are removed because their blocks merge.
// Keys therefore stay in the tail until searches have used up the credit. Each search adds
// creditStep to the credit, and each tail key that it visits costs one. Apart from heap
// operations, a search thus takes amortized constant time.
const (
	creditStep = 4
	maxCredit  = 1024
)

func (f *freeBlocks) addKey(g *bag, b *block, id uint32) {
	slot := g.count
	if slot == g.capacity {
		f.resize(g, max(2*slot, minBagCapacity))
	}
	g.count = slot + 1
	f.keys[g.start+slot] = b.key(id)
	b.packed = uint64(Free) | uint64(slot)<<slotShift
}

func (f *freeBlocks) removeKey(g *bag, slot uint32) {
	last := g.count - 1
	g.count = last
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

// removeKeySlowly handles the cases in which removeKey must change the heap or shrink the bag. The
// caller must have decremented g.count.
func (f *freeBlocks) removeKeySlowly(g *bag, slot uint32) {
	if slot < g.heaped {
		f.removeHeaped(g, slot)
	} else {
		f.setSlot(g, slot, f.keys[g.start+g.count])
	}
	f.keys[g.start+g.count] = noKey
	if g.count+1 < g.capacity/4 {
		f.resize(g, g.capacity/2)
	}
}

// removeHeaped removes the key in a slot of the heap and fills the slot with the heap's last key.
// The caller must have decremented g.count.
func (f *freeBlocks) removeHeaped(g *bag, slot uint32) {
	g.heaped--
	key := f.keys[g.start+g.heaped]
	switch {
	case slot == g.heaped:
	case slot > 0 && f.keys[g.start+(slot-1)/2] > key:
		f.siftUp(g, slot, key)
	default:
		f.siftDown(g, slot, key)
	}
	if g.heaped < g.count {
		f.setSlot(g, g.heaped, f.keys[g.start+g.count])
	}
}

func (f *freeBlocks) setSlot(g *bag, slot uint32, key uint64) {
	f.keys[g.start+slot] = key
	f.blocks[key&idMask].packed = uint64(Free) | uint64(slot)<<slotShift
}

// first returns the block with the lowest position in a bag.
func (f *freeBlocks) first(g *bag) uint32 {
	if g.capacity == minBagCapacity {
		keys := (*[minBagCapacity]uint64)(f.keys[g.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}
	return f.lowest(g)
}

// lowest is like first, but works for bags of any capacity.
func (f *freeBlocks) lowest(g *bag) uint32 {
	tail := int(g.count - g.heaped)
	f.credit = min(f.credit, maxCredit) - tail
	if f.credit < 0 {
		f.heapifyTail(g)
	}
	keys := f.keys[g.start:][:g.count]
	low := keys[0]
	for i := g.heaped; i < uint32(len(keys)); i++ {
		low = min(low, keys[i])
	}
	return uint32(low & idMask)
}

func (f *freeBlocks) heapifyTail(g *bag) {
	f.credit = 0
	for g.heaped < g.count {
		g.heaped++
		f.siftUp(g, g.heaped-1, f.keys[g.start+g.heaped-1])
	}
}

func (f *freeBlocks) siftUp(g *bag, slot uint32, key uint64) {
	for slot > 0 {
		parent := (slot - 1) / 2
		if f.keys[g.start+parent] <= key {
			break
		}
		f.setSlot(g, slot, f.keys[g.start+parent])
		slot = parent
	}
	f.setSlot(g, slot, key)
}

func (f *freeBlocks) siftDown(g *bag, slot uint32, key uint64) {
	heap := f.keys[g.start : g.start+g.heaped]
	for child := 2*slot + 1; child < g.heaped; child = 2*slot + 1 {
		if child+1 < g.heaped && heap[child+1] < heap[child] {
			child++
		}
		if heap[child] >= key {
			break
		}
		f.setSlot(g, slot, heap[child])
		slot = child
	}
	f.setSlot(g, slot, key)
}

func (f *freeBlocks) resize(g *bag, capacity uint32) {
	start := f.allocKeys(capacity)
	keys := f.keys[start : start+capacity]
	for i := copy(keys, f.keys[g.start:g.start+g.count]); i < len(keys); i++ {
		keys[i] = noKey
	}
	if g.capacity > 0 {
		spare := &f.spareKeys[bits.TrailingZeros32(g.capacity)&31]
		f.keys[g.start] = uint64(*spare)
		*spare = g.start
	}
	g.start, g.capacity = start, capacity
}

// allocKeys returns the start of an unused array of keys. It may reallocate freeBlocks.keys.
func (f *freeBlocks) allocKeys(capacity uint32) uint32 {
	spare := &f.spareKeys[bits.TrailingZeros32(capacity)&31]
	start := *spare
	if start != 0 {
		*spare = uint32(f.keys[start])
		return start
	}
	start = uint32(len(f.keys))
	f.keys = append(f.keys, make([]uint64, capacity)...)
	return start
}
