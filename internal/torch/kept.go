package torch

import (
	"slices"
	"sync"
)

// keeping are pools that were closed over live buffers, whose memory callers may still use, and
// free.
type keeping struct {
	mu    sync.Mutex
	pools []*pool // guarded by mu
}

// keep notes pools that are closed, if buffers of theirs are live.
func (k *keeping) keep(pools ...*pool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range pools {
		if count, _ := p.held(); count > 0 {
			k.pools = append(k.pools, p)
		}
	}
}

// free frees a buffer of a closed pool, and reports whether it was one.
func (k *keeping) free(address uintptr) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, p := range k.pools {
		p.mu.Lock()
		b, ok := p.live.take(address)
		last := len(p.live.buffers) == 0
		p.mu.Unlock()
		if !ok {
			continue
		}
		if last {
			k.pools = slices.Delete(k.pools, i, i+1)
		}
		return true, b.Free()
	}
	return false, nil
}
