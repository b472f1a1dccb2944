package nccl

import "sync"

// cells allocates variables into which NCCL writes handles. NCCL may do so on another thread after
// the call has returned, so cells are never reused or freed.
type cells struct {
	mu     sync.Mutex
	blocks [][]uintptr // guarded by mu
	used   int         // in the last block; guarded by mu
}

const cellsPerBlock = 512

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
