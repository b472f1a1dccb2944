package symmem

import (
	"sync/atomic"

	"symmem/internal/spin"
)

// counter is counted up by one writer at a time, without a locked instruction, and read by anybody.
type counter struct{ n uint64 }

func (c *counter) add() { spin.StoreRelease64(&c.n, c.n+1) }

// Load returns the count.
func (c *counter) Load() uint64 { return atomic.LoadUint64(&c.n) }
