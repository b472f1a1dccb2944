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

// pool is a symmem.Pool with retired buffers. The caller has freed these buffers in an order that
// differs between ranks. They stay allocated until freeRetired, which frees them in the
// same order on all ranks.
type pool struct {
	*symmem.Pool
	owner        *rank // the rank that has opened the pool
	isForSignals bool  // contains signal words

	mu        sync.Mutex
	retired   []symmem.Buffer // guarded by mu
	isClosing bool            // frees take effect at once; guarded by mu
}

// countLive returns the number and the total size of the buffers that are allocated.
func (p *pool) countLive() (count int, bytes int64) { return p.owner.rt.Interop().Live(p.Pool) }

// alloc frees the retired buffers and allocates a buffer. Allocations are the same on all ranks, so
// all ranks free the same buffers.
func (p *pool) alloc(s *symmem.Stream, bytes int64, site uint32) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.freeRetiredLocked(); err != nil {
		return 0, err
	}

	b, err := p.owner.interopAt(site).Alloc(p.Pool, s, bytes)
	return b.Address(), err
}

// free frees a buffer and all retired ones. If delay is set, it only retires the buffer, and the
// next freeRetired frees it.
func (p *pool) free(b symmem.Buffer, delay bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = append(p.retired, b)
	if delay && !p.isClosing {
		return nil
	}

	return p.freeRetiredLocked()
}

// freeRetiredLocked frees the retired buffers in an order that is the same on all ranks.
func (p *pool) freeRetiredLocked() error {
	if len(p.retired) == 0 {
		return nil
	}

	slices.SortFunc(p.retired, compareOffsets)
	var allErrs error
	for _, b := range p.retired {
		err := b.Free()
		allErrs = errors.Join(allErrs, err)
	}

	clear(p.retired) // does not keep the freed buffers alive
	p.retired = p.retired[:0]
	return allErrs
}

// freeRetired frees the retired buffers. Call it in calls that are the same on all ranks.
func (p *pool) freeRetired() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freeRetiredLocked()
}

// beginClose frees the retired buffers. Later frees take effect at once,
// because no freeRetired follows.
func (p *pool) beginClose() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isClosing = true
	return p.freeRetiredLocked()
}

func compareOffsets(a, b symmem.Buffer) int {
	return cmp.Or(cmp.Compare(a.Segment(), b.Segment()), cmp.Compare(a.Offset(), b.Offset()))
}

// poolTable holds the open pools of all ranks of this process.
type poolTable struct {
	mu    sync.RWMutex
	pools [MaxPools]*pool // by number; guarded by mu
	local map[*rank]*pool // pools of local memory; nil if there are none; guarded by mu
	// byAge holds all open pools, oldest first. Unlike the pool numbers, this order is the same on
	// all ranks. Guarded by mu.
	byAge []*pool
}

// openPool opens a pool and returns its number. Number 0 is reserved for the main world's pool.
func (t *poolTable) openPool(owner *rank, o symmem.PoolOptions) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const firstNumber = 1
	index := slices.Index(t.pools[firstNumber:], nil)
	if index < 0 {
		return 0, fmt.Errorf("opening a pool: %d pools are already open: %w", MaxPools-1,
			symmem.ErrInvalid)
	}

	number := firstNumber + index
	p, err := t.openLocked(owner, o)
	if err != nil {
		return 0, err
	}

	t.pools[number] = p
	return number, nil
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

// find returns the pool with a number. LocalPool is the number of r's pool of local memory.
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
	if err != nil {
		return nil, err
	}

	p.isForSignals = true
	return p, nil
}

// closeSignals closes a pool of signal words. After an error, it can be called again.
func (t *poolTable) closeSignals(p *pool) error {
	freeErr := p.beginClose()
	closeErr := p.Close()
	if err := errors.Join(freeErr, closeErr); err != nil {
		return err
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(func(other *pool) bool { return other == p })
	return nil
}

// findOrOpenLocal returns r's pool of local memory. The first call opens it.
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

// remove removes a pool. It does nothing if another call has removed the pool in the meantime. The
// number can then belong to a new pool.
func (t *poolTable) remove(number int, p *pool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pools[number] == p {
		t.pools[number] = nil
		t.removeLocked(func(other *pool) bool { return other == p })
	}
}

// removeLocked removes pools from byAge. The caller removes them from the other fields.
func (t *poolTable) removeLocked(match func(*pool) bool) {
	t.byAge = slices.DeleteFunc(t.byAge, match)
}

// removeAll removes the pools of a rank.
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

// allPools returns the pools, oldest first.
func (t *poolTable) allPools() []*pool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.byAge)
}

// ownedBy returns the pools of a rank, oldest first.
func (t *poolTable) ownedBy(r *rank) []*pool {
	isOfOther := func(p *pool) bool { return p.owner != r }
	return slices.DeleteFunc(t.allPools(), isOfOther)
}

// findWrapper returns the pool that wraps a symmem.Pool, or nil if there is none.
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

// countLive returns the number and the total size of the allocated buffers in all pools of a rank.
func (t *poolTable) countLive(r *rank) (count int, bytes int64) {
	for _, p := range t.ownedBy(r) {
		poolCount, poolBytes := p.countLive()
		count += poolCount
		bytes += poolBytes
	}

	return count, bytes
}

// numberOf returns a pool's number: its index, LocalPool or signalPool.
func (t *poolTable) numberOf(p *pool) int {
	if p.isForSignals {
		return signalPool
	}

	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Index(t.pools[:], p) // -1, which is LocalPool, for pools of local memory
}

// free frees a buffer of any pool. See pool.free for delay.
func (t *poolTable) free(b symmem.Buffer, delay bool) error {
	p := t.findWrapper(b.Pool())
	if p == nil { // the pool was closed with live buffers
		return b.Free()
	}

	return p.free(b, delay)
}
