package binding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"symmem"
)

// MaxPools is the maximum number of open pools. The C code has allocator functions for each pool.
const MaxPools = 16

// LocalPool is the pool number that stands for local memory, which is never registered.
const LocalPool = -1

// signalPool is the number that Locate and Stats give for pools of signal words. Calls do not
// accept it.
const signalPool = -2

// pool is a symmem.Pool with retired buffers, which the caller has freed, but which stay allocated
// until flush.
type pool struct {
	*symmem.Pool
	owner        *rank
	isForSignals bool

	mu        sync.Mutex
	retired   []symmem.Buffer // guarded by mu
	isClosing bool            // frees take effect at once; guarded by mu
}

func (p *pool) countLive() (count int, bytes int64) { return p.owner.rt.Interop().Live(p.Pool) }

func (p *pool) alloc(s *symmem.Stream, bytes int64, site uint32) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.flushLocked(); err != nil {
		return 0, err
	}
	b, err := p.owner.interopAt(site).Alloc(p.Pool, s, bytes)
	return b.Address(), err
}

// free frees a retired buffer. If delay is set, the next flush frees it.
func (p *pool) free(b symmem.Buffer, delay bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = append(p.retired, b)
	if delay && !p.isClosing {
		return nil
	}
	return p.flushLocked()
}

// flushLocked frees the retired buffers in an order that is the same on all ranks.
func (p *pool) flushLocked() error {
	if len(p.retired) == 0 {
		return nil
	}
	slices.SortFunc(p.retired, compareOffsets)
	var errs error
	for _, b := range p.retired {
		errs = errors.Join(errs, b.Free())
	}
	clear(p.retired)
	p.retired = p.retired[:0]
	return errs
}

func (p *pool) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flushLocked()
}

// beginClose frees the retired buffers. Later frees take effect at once, because no flush follows.
func (p *pool) beginClose() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isClosing = true
	return p.flushLocked()
}

func compareOffsets(a, b symmem.Buffer) int {
	return cmp.Or(cmp.Compare(a.Segment(), b.Segment()), cmp.Compare(a.Offset(), b.Offset()))
}

type poolTable struct {
	mu    sync.RWMutex
	pools [MaxPools]*pool // by number; guarded by mu
	local map[*rank]*pool // pools of local memory; guarded by mu
	// byAge holds all open pools, oldest first. Unlike the pool numbers, this order is the same on
	// all ranks. Guarded by mu.
	byAge []*pool
}

// openPool opens a pool and returns its number. Number 0 is reserved for the main world's pool.
func (t *poolTable) openPool(owner *rank, o symmem.PoolOptions) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	unused := slices.Index(t.pools[1:], nil)
	if unused < 0 {
		return 0, fmt.Errorf("opening a pool: %d pools are already open: %w", MaxPools-1,
			symmem.ErrInvalid)
	}
	p, err := t.openLocked(owner, o)
	if err == nil {
		t.pools[unused+1] = p
	}
	return unused + 1, err
}

func (t *poolTable) openMainPool(owner *rank, o symmem.PoolOptions) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.openLocked(owner, o)
	if err == nil {
		t.pools[0] = p
	}
	return err
}

func (t *poolTable) openLocked(owner *rank, o symmem.PoolOptions) (*pool, error) {
	opened, err := owner.rt.NewPool(o)
	if err != nil {
		return nil, err
	}
	p := &pool{Pool: opened, owner: owner}
	t.byAge = append(t.byAge, p)
	return p, nil
}

func (t *poolTable) find(number int, r *rank) (*pool, error) {
	if number == LocalPool {
		return t.findOrOpenLocal(r)
	}
	if number < 0 || number >= MaxPools {
		return nil, fmt.Errorf("there is no pool %d; want 0 to %d: %w",
			number, MaxPools-1, symmem.ErrInvalid)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if p := t.pools[number]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("pool %d is not open: %w", number, symmem.ErrClosed)
}

// openSignals opens a pool for signal words. The pool has no number, so find does not return it.
func (t *poolTable) openSignals(owner *rank, o symmem.PoolOptions) (*pool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.openLocked(owner, o)
	if err == nil {
		p.isForSignals = true
	}
	return p, err
}

// closeSignals closes a pool of signal words. After an error it can be called again.
func (t *poolTable) closeSignals(p *pool) error {
	if err := errors.Join(p.beginClose(), p.Close()); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(func(other *pool) bool { return other == p })
	return nil
}

func (t *poolTable) findOrOpenLocal(r *rank) (*pool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.local[r]; p != nil {
		return p, nil
	}
	p, err := t.openLocked(r, symmem.PoolOptions{})
	if err != nil {
		return nil, err
	}
	if t.local == nil {
		t.local = map[*rank]*pool{}
	}
	t.local[r] = p
	return p, nil
}

// remove releases a pool's number, unless another call has closed the pool and the number belongs
// to a new one.
func (t *poolTable) remove(number int, p *pool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pools[number] == p {
		t.pools[number] = nil
		t.removeLocked(func(other *pool) bool { return other == p })
	}
}

func (t *poolTable) removeLocked(match func(*pool) bool) {
	t.byAge = slices.DeleteFunc(t.byAge, match)
}

func (t *poolTable) removeAll(r *rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.local, r)
	for number, p := range t.pools {
		if p != nil && p.owner == r {
			t.pools[number] = nil
		}
	}
	t.removeLocked(func(p *pool) bool { return p.owner == r })
}

func (t *poolTable) allPools() []*pool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.byAge)
}

func (t *poolTable) ownedBy(r *rank) []*pool {
	return slices.DeleteFunc(t.allPools(), func(p *pool) bool { return p.owner != r })
}

func (t *poolTable) findWrapper(wrapped *symmem.Pool) *pool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.byAge {
		if p.Pool == wrapped {
			return p
		}
	}
	return nil
}

func (t *poolTable) countLive(r *rank) (count int, bytes int64) {
	for _, p := range t.ownedBy(r) {
		c, b := p.countLive()
		count, bytes = count+c, bytes+b
	}
	return count, bytes
}

func (t *poolTable) numberOf(p *pool) int {
	if p.isForSignals {
		return signalPool
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Index(t.pools[:], p)
}

func (t *poolTable) free(b symmem.Buffer, delay bool) error {
	if p := t.findWrapper(b.Pool()); p != nil {
		return p.free(b, delay)
	}
	return b.Free()
}
