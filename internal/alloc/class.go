package alloc

// A key orders the free blocks of one size: arena position in units above, record below.
const (
	idBits  = 26
	idMask  = 1<<idBits - 1
	atLimit = uint64(1) << (64 - idBits) // first position that no key can hold
)

// inFront is the slot of the block that stands in front of its class.
const inFront = -1

const (
	arity = 4
	few   = 16 // longest rest that is searched and not sorted: two cache lines of keys
)

// class holds the free blocks of one size of one index. It sorts as late as it can: a block
// that merges with a neighbour soon after was never compared with anything.
//
// The front is the lowest key, or 0 if that is not known now. The rest is a heap of sorted keys
// with four children a node, then keys in no order. All of the rest is above low. When the
// front was taken, low is what it was, so the same block coming back is the front again.
type class struct {
	front      uint64
	low        uint64
	rest       []uint64
	units      uint64
	sorted     int32
	bin        int32
	prev, next int32 // neighbours in the bin; next also chains unused classes
}

// add takes a key into the rest, or to the front, whose key then goes to the rest.
func (c *Core) add(cl *class, b *block, key uint64) {
	slot := len(cl.rest)
	if key < cl.front {
		b.slot = inFront
		key, cl.front = cl.front, key
		c.blocks[key&idMask].slot = int32(slot)
	} else {
		b.slot = int32(slot)
	}
	cl.rest = append(cl.rest, key)
}

// elect moves the lowest key of the rest to the front. Only a long rest is worth sorting.
func (c *Core) elect(cl *class) {
	if len(cl.rest) <= few && cl.sorted == 0 {
		c.electOfFew(cl)
		return
	}
	for slot := int(cl.sorted); slot < len(cl.rest); slot++ {
		c.rise(cl.rest, slot, cl.rest[slot])
	}
	cl.sorted = int32(len(cl.rest))
	cl.front = cl.rest[0]
	c.pull(cl, 0)
	c.blocks[cl.front&idMask].slot = inFront
}

// electOfFew is elect without sorting.
func (c *Core) electOfFew(cl *class) {
	rest := cl.rest
	low, at := rest[0], 0
	for slot, key := range rest {
		if key < low {
			low, at = key, slot
		}
	}
	last := len(rest) - 1
	cl.rest = rest[:last]
	if at != last {
		c.put(rest, at, rest[last])
	}
	cl.front = low
	c.blocks[low&idMask].slot = inFront
}

// pull takes the key at a slot out of the rest.
func (c *Core) pull(cl *class, slot int) {
	rest := cl.rest
	last := len(rest) - 1
	cl.rest = rest[:last]
	if slot < int(cl.sorted) {
		cl.sorted--
		slot = c.mend(rest[:cl.sorted], slot, rest[cl.sorted])
	}
	if slot != last {
		c.put(rest, slot, rest[last])
	}
}

// mend fills an empty slot of a heap with the key that stood behind the heap, and returns the
// slot where that key stood, empty now.
func (c *Core) mend(heap []uint64, slot int, key uint64) int {
	switch {
	case slot == len(heap):
	case slot > 0 && key < heap[(slot-1)/arity]:
		c.rise(heap, slot, key)
	default:
		c.sink(heap, slot, key)
	}
	return len(heap)
}

// put stores a key at a slot and tells its block.
func (c *Core) put(heap []uint64, slot int, key uint64) {
	heap[slot] = key
	c.blocks[key&idMask].slot = int32(slot)
}

// rise moves a key from an empty slot towards the root.
func (c *Core) rise(heap []uint64, slot int, key uint64) {
	for slot > 0 {
		parent := (slot - 1) / arity
		if heap[parent] < key {
			break
		}
		c.put(heap, slot, heap[parent])
		slot = parent
	}
	c.put(heap, slot, key)
}

// sink moves a key from an empty slot towards the leaves.
func (c *Core) sink(heap []uint64, slot int, key uint64) {
	for {
		first := slot*arity + 1
		if first >= len(heap) {
			break
		}
		child := first
		for i := first + 1; i < min(first+arity, len(heap)); i++ {
			if heap[i] < heap[child] {
				child = i
			}
		}
		if key < heap[child] {
			break
		}
		c.put(heap, slot, heap[child])
		slot = child
	}
	c.put(heap, slot, key)
}
