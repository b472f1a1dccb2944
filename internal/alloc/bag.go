package alloc

import "math/bits"

// freeBlocks files the free blocks of a Core by size.
type freeBlocks struct {
	slab
	keys    []uint64   // of the bags; the first is none's
	rooms   [32]uint32 // first unused room of each size in keys, by its logarithm
	credit  int        // keys that searches may still look at
	classes []class    // by number; 0 is no class
	unused  uint32     // first unused class
}

// bag holds the free blocks of one size of one index, a class, as keys that order them by position.
// The keys of a bag lie side by side in freeBlocks.keys and those of all bags close together, and a
// block knows its slot: so a block comes and goes without a look at any other record but the one
// whose key takes its slot.
//
// The first keys are a heap; those behind, the tail, lie as they came. A block that comes is put
// at the end of the tail. Only the question for the lowest block compares any: it looks at the
// first key and at the tail, or makes the tail part of the heap if that is too long. So a block
// that merges soon after it was freed is never compared with anything.
//
// Slots that hold no key hold noKey, which is above all keys, so a bag in the least room, as most
// are, is asked for its lowest block without a look at how many it has: that nobody could guess.
type bag struct {
	start  uint32 // of its room in freeBlocks.keys
	room   uint32 // keys that fit into the room: a power of two, or 0 if it has none
	count  uint32 // keys that it holds
	heaped uint32 // how many of them are the heap
}

// leastRoom is the smallest room; a smaller one would be outgrown at once.
const leastRoom = 4

// noKey is what unused slots hold.
const noKey = ^uint64(0)

// A search for the lowest block may look at a number of keys that are no heap, since a heap is dear
// to those who leave it and most leave by merging. The number is what is left of credit, to which
// each request adds: so the searches cost constant time in the mean, and that of a heap beyond.
const (
	creditStep = 4
	maxCredit  = 1024
)

// add puts a free block into a bag.
func (f *freeBlocks) add(g *bag, b *block, id uint32) {
	slot := g.count
	if slot == g.room {
		f.move(g, max(2*slot, leastRoom))
	}
	g.count = slot + 1
	f.keys[g.start+slot] = b.key(id)
	b.rest = uint64(Free) | uint64(slot)<<slotShift
}

// take takes the key of a slot out of a bag; the last one takes its place.
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

// takeSlowly is take for any bag. The number of keys is what it will be.
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

// takeHeaped is take for a slot of the heap, from whose end a key takes the place. The number of
// keys is what it will be.
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

// first returns the first block of a bag by position.
func (f *freeBlocks) first(g *bag) uint32 {
	if g.room == leastRoom {
		keys := (*[leastRoom]uint64)(f.keys[g.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}
	return f.lowest(g)
}

// lowest is first for a bag in any room.
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

// heapAll makes the tail of a bag part of the heap.
func (f *freeBlocks) heapAll(g *bag) {
	f.credit = 0
	for g.heaped < g.count {
		g.heaped++
		f.rise(g, g.heaped-1, f.keys[g.start+g.heaped-1])
	}
}

// rise puts a key into a slot of the heap or into one above.
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

// sink puts a key into a slot of the heap or into one below.
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

// move gives a bag a room of another size.
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

// grabRoom returns where an unused room of a size begins. It may move the keys.
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
