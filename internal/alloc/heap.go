package alloc

// The free blocks of one size of one index, a class, are a pairing heap whose links are in the
// records. It is a list of trees; no block of a tree lies before its root. A block that comes is a
// tree of its own at the head of the list. One that goes, because it merges with a neighbour, is
// unlinked from its list. Only the question for the lowest block compares any: it joins the trees
// to one, and what was compared once is kept as tree. So a block that merges soon after it was
// freed is never compared with anything, and a block that is taken and returned again and again
// costs one comparison each time, however many lie behind it.
//
// The lists are linked both ways by block.before and block.after; the first child of a block has
// that block before it, and the head of a class nothing. A block that is or was somebody's child or
// parent is sided.

// atLimit is the first position that a record cannot hold.
const atLimit = uint64(1) << (64 - idBits)

// push puts a free block at the head of a list that began with first.
func (c *Core) push(b *block, id, first int32) {
	b.rest = uint64(Free) | uint64(first)<<afterShift
	c.blocks[first].setBefore(id)
}

// A search for the lowest block may look at a number of trees without joining them, since joining
// writes to them all and most would merge with a neighbour soon anyhow. The number is what is left
// of credit, to which each request adds: so the searches cost constant time in the mean.
const (
	creditStep = 4
	maxCredit  = 1024
)

// lowest returns the first block of a class by position.
func (c *Core) lowest(head *int32) int32 {
	first := *head
	low := c.blocks[first].key(first)
	credit := min(c.credit, maxCredit)
	for id := c.blocks[first].after(); id != 0; credit-- {
		if credit <= 0 {
			c.credit = 0
			*head = c.join(first)
			return *head
		}
		b := &c.blocks[id]
		low = min(low, b.key(id))
		id = b.after()
	}
	c.credit = credit
	return int32(low & idMask)
}

// join makes one tree of the trees of a list and returns its root.
func (c *Core) join(first int32) int32 {
	pairs := int32(0)
	for first != 0 {
		tree, second := first, c.blocks[first].after()
		first = c.blocks[second].after()
		if second == 0 {
			first = 0
		} else {
			tree = c.link(tree, second)
		}
		c.blocks[tree].setAfter(pairs)
		pairs = tree
	}
	root, tree := pairs, c.blocks[pairs].after()
	for tree != 0 {
		following := c.blocks[tree].after()
		root = c.link(root, tree)
		tree = following
	}
	c.blocks[root].setBefore(0)
	c.blocks[root].setAfter(0)
	return root
}

// link makes the later of two roots the first child of the other, which it returns. The links of
// that one to its neighbours are left alone.
func (c *Core) link(root, child int32) int32 {
	if c.blocks[root].place > c.blocks[child].place {
		root, child = child, root
	}
	second := c.sides[root].child
	c.sides[root].child = child
	c.blocks[root].rest |= sided
	b := &c.blocks[child]
	b.rest |= sided
	b.setBefore(root)
	b.setAfter(second)
	c.blocks[second].setBefore(child)
	return root
}

// uproot takes a sided block out of the lists of its class; what is below it takes its stead. It
// returns the head of the class, of which first was the head.
func (c *Core) uproot(b *block, id, first int32) int32 {
	before, after := b.before(), b.after()
	heir := c.sides[id].child
	c.sides[id].child = 0
	if heir != 0 && (before != 0 || after != 0) {
		heir = c.join(heir)
		c.blocks[heir].setAfter(after)
		c.blocks[after].setBefore(heir)
	} else if heir == 0 {
		heir = after
	}
	c.blocks[heir].setBefore(before)
	switch {
	case before == 0:
		return heir
	case c.sides[before].child == id:
		c.sides[before].child = heir
	default:
		c.blocks[before].setAfter(heir)
	}
	return first
}

// count returns how many blocks the trees of a list hold.
func (c *Core) count(first int32) (n int64) {
	for id := first; id != 0; id = c.blocks[id].after() {
		n += 1 + c.count(c.sides[id].child)
	}
	return n
}
