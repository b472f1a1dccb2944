package binding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"symmem"
)

// Pools limits the number of open pools. The C code has a set of allocator functions for each.
const Pools = 16

// Local selects the pool of local memory, which is never registered.
const Local = -1

// pool adds a list of retired buffers to a symmem.Pool. Retired buffers are freed by flush.
type pool struct {
	*symmem.Pool
	interop symmem.Interop

	mu      sync.Mutex
	freed   []symmem.Buffer // retired buffers; guarded by mu
	closing bool            // a close has begun, so frees take effect at once; guarded by mu
}

// live returns the number and total size of the buffers that callers have not freed.
func (p *pool) live() (count int, bytes int64) { return p.interop.Live(p.Pool) }

// alloc allocates a buffer and returns its address.
func (p *pool) alloc(s *symmem.Stream, bytes int64, site uint32) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.flushLocked(); err != nil {
		return 0, err
	}
	b, err := p.interop.At(site).Alloc(p.Pool, s, bytes)
	return b.Address(), err
}

// free frees a retired buffer. If later is set, the next flush frees the buffer instead.
func (p *pool) free(b symmem.Buffer, later bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freed = append(p.freed, b)
	if later && !p.closing {
		return nil
	}
	return p.flushLocked()
}

// flushLocked frees the retired buffers in order of segment and offset. The order of retirement may
// differ between ranks. The caller holds p.mu.
func (p *pool) flushLocked() error {
	if len(p.freed) == 0 {
		return nil
	}
	slices.SortFunc(p.freed, byPlace)
	var errs error
	for _, b := range p.freed {
		errs = errors.Join(errs, b.Free())
	}
	clear(p.freed)
	p.freed = p.freed[:0]
	return errs
}

// flush frees the retired buffers.
func (p *pool) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flushLocked()
}

// beginClose frees the retired buffers. Later frees take effect at once, since no flush follows.
func (p *pool) beginClose() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	return p.flushLocked()
}

// byPlace orders buffers by segment, then by offset.
func byPlace(a, b symmem.Buffer) int {
	return cmp.Or(cmp.Compare(a.Segment(), b.Segment()), cmp.Compare(a.Offset(), b.Offset()))
}

// poolTable numbers the open pools of a rank.
type poolTable struct {
	rt *symmem.Runtime

	mu    sync.RWMutex
	pools [Pools + 1]*pool // by number; the last is the local pool; guarded by mu
}

// add opens a pool and returns its number.
func (t *poolTable) add(o symmem.PoolOptions) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := slices.Index(t.pools[:Pools], nil)
	if number < 0 {
		return 0, fmt.Errorf("opening a pool: %d pools are already open: %w", Pools,
			symmem.ErrInvalid)
	}
	return number, t.openLocked(number, o)
}

// openLocked opens a pool with a free number. The caller holds t.mu.
func (t *poolTable) openLocked(number int, o symmem.PoolOptions) error {
	p, err := t.rt.NewPool(o)
	if err == nil {
		t.pools[number] = &pool{Pool: p, interop: t.rt.Interop()}
	}
	return err
}

// find returns the pool with a number.
func (t *poolTable) find(number int) (*pool, error) {
	if number == Local {
		return t.local()
	}
	if number < 0 || number >= Pools {
		return nil, fmt.Errorf("pool %d: numbers are from 0 to %d: %w",
			number, Pools-1, symmem.ErrInvalid)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if p := t.pools[number]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("pool %d: not open: %w", number, symmem.ErrClosed)
}

// local returns the pool of local memory. The first call opens the pool.
func (t *poolTable) local() (*pool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pools[Pools] == nil {
		if err := t.openLocked(Pools, symmem.PoolOptions{}); err != nil {
			return nil, err
		}
	}
	return t.pools[Pools], nil
}

// remove releases a pool's number. Two calls may close the same pool, so remove does nothing if the
// number already belongs to another pool.
func (t *poolTable) remove(number int, p *pool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pools[number] == p {
		t.pools[number] = nil
	}
}

// all returns the open pools by number, followed by the local pool. The local pool has no domain.
func (t *poolTable) all() []*pool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(t.pools[:]), func(p *pool) bool { return p == nil })
}

// wrapper returns the open pool that wraps a symmem.Pool, or nil.
func (t *poolTable) wrapper(wrapped *symmem.Pool) *pool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.pools {
		if p != nil && p.Pool == wrapped {
			return p
		}
	}
	return nil
}

// live returns the number and total size of the buffers that callers have not freed.
func (t *poolTable) live() (count int, bytes int64) {
	for _, p := range t.all() {
		c, b := p.live()
		count, bytes = count+c, bytes+b
	}
	return count, bytes
}

// number returns the number of a pool, or Local.
func (t *poolTable) number(p *pool) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Index(t.pools[:Pools], p)
}

// free frees a retired buffer as pool.free does. A buffer of a closed pool is freed at once.
func (t *poolTable) free(b symmem.Buffer, later bool) error {
	if p := t.wrapper(b.Pool()); p != nil {
		return p.free(b, later)
	}
	return b.Free()
}
