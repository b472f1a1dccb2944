package alloc

import "math/bits"

// bag holds the free blocks of one size of one index, a class, as keys that order them by position.
// The keys of a bag lie side by side in Core.keys and those of all bags close together, and a block
// knows its slot: so a block comes and goes without a look at any other record but the one whose
// key takes its slot.
//
// The first keys are a heap; those behind, the tail, lie as they came. A block that comes is put
// at the end of the tail. Only the question for the lowest block compares any: it looks at the
// first key and at the tail, or makes the tail part of the heap if that is too long. So a block
// that merges soon after it was freed is never compared with anything.
//
// Slots that hold no key hold noKey, which is above all keys, so a bag in the least room, as most
// are, is asked for its lowest block without a look at how many it has: that nobody could guess.
type bag struct {
	start  uint32 // of its room in Core.keys
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
func (c *Core) add(g *bag, b *block, id uint32) {
	slot := g.count
	if slot == g.room {
		c.move(g, max(2*slot, leastRoom))
	}
	g.count = slot + 1
	c.keys[g.start+slot] = b.key(id)
	b.rest = uint64(Free) | uint64(slot)<<slotShift
}

// take takes the key of a slot out of a bag; the last one takes its place.
func (c *Core) take(g *bag, slot uint32) {
	last := g.count - 1
	g.count = last
	if slot < g.heaped || last+1 < g.room/4 {
		c.takeSlowly(g, slot)
		return
	}
	keys := c.keys
	key := keys[g.start+last]
	keys[g.start+slot] = key
	keys[g.start+last] = noKey
	c.blocks[key&idMask].rest = uint64(Free) | uint64(slot)<<slotShift
}

// takeSlowly is take for any bag. The number of keys is what it will be.
func (c *Core) takeSlowly(g *bag, slot uint32) {
	if slot < g.heaped {
		c.takeHeaped(g, slot)
	} else {
		c.lodge(g, slot, c.keys[g.start+g.count])
	}
	c.keys[g.start+g.count] = noKey
	if g.count+1 < g.room/4 {
		c.move(g, g.room/2)
	}
}

// takeHeaped is take for a slot of the heap, from whose end a key takes the place. The number of
// keys is what it will be.
func (c *Core) takeHeaped(g *bag, slot uint32) {
	g.heaped--
	key := c.keys[g.start+g.heaped]
	switch {
	case slot == g.heaped:
	case slot > 0 && c.keys[g.start+(slot-1)/2] > key:
		c.rise(g, slot, key)
	default:
		c.sink(g, slot, key)
	}
	if g.heaped < g.count {
		c.lodge(g, g.heaped, c.keys[g.start+g.count])
	}
}

// lodge writes a key into a slot.
func (c *Core) lodge(g *bag, slot uint32, key uint64) {
	c.keys[g.start+slot] = key
	c.blocks[key&idMask].rest = uint64(Free) | uint64(slot)<<slotShift
}

// first returns the first block of a bag by position.
func (c *Core) first(g *bag) uint32 {
	if g.room == leastRoom {
		keys := (*[leastRoom]uint64)(c.keys[g.start:])
		return uint32(min(keys[0], keys[1], keys[2], keys[3]) & idMask)
	}
	return c.lowest(g)
}

// lowest is first for a bag in any room.
func (c *Core) lowest(g *bag) uint32 {
	tail := int(g.count - g.heaped)
	c.credit = min(c.credit, maxCredit) - tail
	if c.credit < 0 {
		c.heapAll(g)
	}
	keys := c.keys[g.start:][:g.count]
	low := keys[0]
	for i := g.heaped; i < uint32(len(keys)); i++ {
		low = min(low, keys[i])
	}
	return uint32(low & idMask)
}

// heapAll makes the tail of a bag part of the heap.
func (c *Core) heapAll(g *bag) {
	c.credit = 0
	for g.heaped < g.count {
		g.heaped++
		c.rise(g, g.heaped-1, c.keys[g.start+g.heaped-1])
	}
}

// rise puts a key into a slot of the heap or into one above.
func (c *Core) rise(g *bag, slot uint32, key uint64) {
	for slot > 0 {
		above := (slot - 1) / 2
		if c.keys[g.start+above] <= key {
			break
		}
		c.lodge(g, slot, c.keys[g.start+above])
		slot = above
	}
	c.lodge(g, slot, key)
}

// sink puts a key into a slot of the heap or into one below.
func (c *Core) sink(g *bag, slot uint32, key uint64) {
	heap := c.keys[g.start : g.start+g.heaped]
	for below := 2*slot + 1; below < g.heaped; below = 2*slot + 1 {
		if below+1 < g.heaped && heap[below+1] < heap[below] {
			below++
		}
		if heap[below] >= key {
			break
		}
		c.lodge(g, slot, heap[below])
		slot = below
	}
	c.lodge(g, slot, key)
}

// move gives a bag a room of another size.
func (c *Core) move(g *bag, room uint32) {
	start := c.grabRoom(room)
	keys := c.keys[start : start+room]
	for i := copy(keys, c.keys[g.start:g.start+g.count]); i < len(keys); i++ {
		keys[i] = noKey
	}
	if g.room > 0 {
		rooms := &c.rooms[bits.TrailingZeros32(g.room)&31]
		c.keys[g.start] = uint64(*rooms)
		*rooms = g.start
	}
	g.start, g.room = start, room
}

// grabRoom returns where an unused room of a size begins. It may move the keys.
func (c *Core) grabRoom(room uint32) uint32 {
	rooms := &c.rooms[bits.TrailingZeros32(room)&31]
	start := *rooms
	if start != 0 {
		*rooms = uint32(c.keys[start])
		return start
	}
	start = uint32(len(c.keys))
	c.keys = append(c.keys, make([]uint64, room)...)
	return start
}
