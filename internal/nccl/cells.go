package nccl

import "sync"

// cells allocates variables into which NCCL writes handles. In a group of calls, and for
// nonblocking communicators, NCCL writes a handle after the call has returned, on another
// thread. Cells are therefore never reused or freed. Each communicator and each window uses one
// cell of 8 bytes.
type cells struct {
	mu     sync.Mutex
	blocks [][]uintptr // guarded by mu; all but the last are full
	used   int         // number of used cells in the last block; guarded by mu
}

const cellsPerBlock = 512

// take returns a cell that holds 0. The binding keeps the cell reachable.
func (c *cells) take() *uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.blocks) == 0 || c.used == cellsPerBlock {
		c.blocks, c.used = append(c.blocks, make([]uintptr, cellsPerBlock)), 0
	}
	cell := &c.blocks[len(c.blocks)-1][c.used]
	c.used++
	return cell
}
