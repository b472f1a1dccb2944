package nccl

import "sync"

// cells allocates variables for handles that NCCL fills. In a group, and for nonblocking
// communicators, NCCL fills them after the call has returned, on another thread. So a cell is never
// reused or freed: 8 bytes for each communicator and each window.
type cells struct {
	mu     sync.Mutex
	blocks [][]uintptr // guarded by mu; only the last one has room
	used   int         // cells used of the last block; guarded by mu
}

const cellsInBlock = 512

// take returns a cell that holds 0. The library keeps it reachable.
func (c *cells) take() *uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.blocks) == 0 || c.used == cellsInBlock {
		c.blocks, c.used = append(c.blocks, make([]uintptr, cellsInBlock)), 0
	}
	cell := &c.blocks[len(c.blocks)-1][c.used]
	c.used++
	return cell
}
