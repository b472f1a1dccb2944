package alloc

import "math/bits"

// freeBlocks indexes the free blocks of a Core by size.
type freeBlocks struct {
	slab
	keys    []uint64   // of all bags; the first belongs to none
	rooms   [32]uint32 // first unused room of each size in keys, by the logarithm of the size
	credit  int        // number of keys that searches may still visit, see creditStep
	classes []class    // by number; number 0 is no class
	unused  uint32     // first unused class
}

// bag holds a class: the free blocks of one size in one index. Each block is a key, and keys order
// blocks by position. The keys of a bag are adjacent in freeBlocks.keys, the keys of all bags are
// close together, and a block knows its slot. So adding or removing a block touches no other record
// than the one whose key moves to its slot.
//
// The first keys form a heap; the keys behind it, the tail, are unordered. A new block is appended
// to the tail. Only a search for the lowest block compares keys: it looks at the first key and at
// the tail, or moves the tail into the heap if that is too long. So a block that merges soon after
// its Free is never compared.
//
// Unused slots contain noKey, which is above all keys. So a search in a bag with the smallest room,
// as most have, does not depend on the number of its blocks, on which a branch would be
// unpredictable.
type bag struct {
	start  uint32 // start of its room in freeBlocks.keys
	room   uint32 // number of keys that fit into the room: a power of two, or 0 if it has none
	count  uint32 // number of keys
	heaped uint32 // number of keys in the heap
}

// leastRoom is the size of the smallest room; a smaller one would soon be too small.
const leastRoom = 4

// noKey fills unused slots.
const noKey = ^uint64(0)

// A search for the lowest block may visit keys that are not in a heap, since removing a key from a
// heap is expensive and most keys are removed by merging. It may visit as many as the credit
// allows, to which each request adds. So a search takes constant time on average, plus the time for
// a heap.
const (
	creditStep = 4
	maxCredit  = 1024
)

// add adds a free block to a bag.
func (f *freeBlocks) add(g *bag, b *block, id uint32) {
	slot := g.count
	if slot == g.room {
		f.move(g, max(2*slot, leastRoom))
	}
	g.count = slot + 1
	f.keys[g.start+slot] = b.key(id)
	b.rest = uint64(Free) | uint64(slot)<<slotShift
}

// take removes the key in a slot from a bag; the last key moves to this slot.
func (f *freeBlocks) take(g *bag, slot uint32) {
	last := g.count - 1
	g.count = last
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

// takeSlowly removes the key in a slot from any bag. The caller has decremented g.count.
func (f *freeBlocks) takeSlowly(g *bag, slot uint32) {
	if slot < g.heaped {
		f.takeHeaped(g, slot)
	} else {
		f.lodge(g, slot, f.keys[g.start+g.count])
	}
	f.keys[g.start+g.count] = noKey
	if g.count+1 < g.room/4 {
		f.move(g, g.room/2)
	}
}

// takeHeaped removes the key in a slot of the heap; the last key of the heap fills the gap. The
// caller has decremented g.count.
func (f *freeBlocks) takeHeaped(g *bag, slot uint32) {
	g.heaped--
	key := f.keys[g.start+g.heaped]
	switch {
	case slot == g.heaped:
	case slot > 0 && f.keys[g.start+(slot-1)/2] > key:
		f.rise(g, slot, key)
	default:
		f.sink(g, slot, key)
	}
	if g.heaped < g.count {
		f.lodge(g, g.heaped, f.keys[g.start+g.count])
	}
}

// lodge writes a key into a slot.
func (f *freeBlocks) lodge(g *bag, slot uint32, key uint64) {
	f.keys[g.start+slot] = key
	f.blocks[key&idMask].rest = uint64(Free) | uint64(slot)<<slotShift
}

// first returns the block with the lowest position in a bag.
func (f *freeBlocks) first(g *bag) uint32 {
	if g.room == leastRoom {
		keys := (*[leastRoom]uint64)(f.keys[g.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}
	return f.lowest(g)
}

// lowest returns the block with the lowest position in a bag with a room of any size.
func (f *freeBlocks) lowest(g *bag) uint32 {
	tail := int(g.count - g.heaped)
	f.credit = min(f.credit, maxCredit) - tail
	if f.credit < 0 {
		f.heapAll(g)
	}
	keys := f.keys[g.start:][:g.count]
	low := keys[0]
	for i := g.heaped; i < uint32(len(keys)); i++ {
		low = min(low, keys[i])
	}
	return uint32(low & idMask)
}

// heapAll moves the tail of a bag into its heap.
func (f *freeBlocks) heapAll(g *bag) {
	f.credit = 0
	for g.heaped < g.count {
		g.heaped++
		f.rise(g, g.heaped-1, f.keys[g.start+g.heaped-1])
	}
}

// rise moves a key up from a slot of the heap until it is in order.
func (f *freeBlocks) rise(g *bag, slot uint32, key uint64) {
	for slot > 0 {
		above := (slot - 1) / 2
		if f.keys[g.start+above] <= key {
			break
		}
		f.lodge(g, slot, f.keys[g.start+above])
		slot = above
	}
	f.lodge(g, slot, key)
}

// sink moves a key down from a slot of the heap until it is in order.
func (f *freeBlocks) sink(g *bag, slot uint32, key uint64) {
	heap := f.keys[g.start : g.start+g.heaped]
	for below := 2*slot + 1; below < g.heaped; below = 2*slot + 1 {
		if below+1 < g.heaped && heap[below+1] < heap[below] {
			below++
		}
		if heap[below] >= key {
			break
		}
		f.lodge(g, slot, heap[below])
		slot = below
	}
	f.lodge(g, slot, key)
}

// move moves a bag to a room of another size.
func (f *freeBlocks) move(g *bag, room uint32) {
	start := f.grabRoom(room)
	keys := f.keys[start : start+room]
	for i := copy(keys, f.keys[g.start:g.start+g.count]); i < len(keys); i++ {
		keys[i] = noKey
	}
	if g.room > 0 {
		rooms := &f.rooms[bits.TrailingZeros32(g.room)&31]
		f.keys[g.start] = uint64(*rooms)
		*rooms = g.start
	}
	g.start, g.room = start, room
}

// grabRoom returns the start of an unused room of a size. It may reallocate the keys.
func (f *freeBlocks) grabRoom(room uint32) uint32 {
	rooms := &f.rooms[bits.TrailingZeros32(room)&31]
	start := *rooms
	if start != 0 {
		*rooms = uint32(f.keys[start])
		return start
	}
	start = uint32(len(f.keys))
	f.keys = append(f.keys, make([]uint64, room)...)
	return start
}
