package alloc

// The free blocks of one class form a heap of keys with four children a node, so that four
// keys to compare share a cache line. Every block knows its slot; any block leaves in
// logarithmic time, and on average after one or two steps.

const arity = 4

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

// pull takes the key at a slot out of a heap and returns the shorter heap.
func (c *Core) pull(heap []uint64, slot int) []uint64 {
	last := len(heap) - 1
	key := heap[last]
	heap = heap[:last]
	if slot == last {
		return heap
	}
	if slot > 0 && key < heap[(slot-1)/arity] {
		c.rise(heap, slot, key)
	} else {
		c.sink(heap, slot, key)
	}
	return heap
}
