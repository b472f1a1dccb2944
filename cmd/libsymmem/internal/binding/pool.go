package binding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"symmem"
	"symmem/driver"
)

// Pools is how many pools there can be at a time: each has allocator functions of its own in C.
const Pools = 16

// Local selects memory of this rank's own, which is never registered.
const Local = -1

// pool is a pool with the frees that have not taken effect.
type pool struct {
	*symmem.Pool
	interop symmem.Interop

	mu    sync.Mutex
	freed []symmem.Buffer // frees that have not taken effect; guarded by mu
	ended bool            // whether frees take effect at once, since a close began; guarded by mu
}

func (r *rank) newPool(o symmem.PoolOptions) (*pool, error) {
	p, err := r.rt.NewPool(o)
	if err != nil {
		return nil, err
	}
	return &pool{Pool: p, interop: r.rt.Interop()}, nil
}

// pool finds a pool by its number.
func (r *rank) pool(number int) (*pool, error) {
	if number == Local {
		return r.localPool()
	}
	if number < 0 || number >= Pools {
		return nil, fmt.Errorf("pool %d: numbers are from 0 to %d: %w",
			number, Pools-1, symmem.ErrInvalid)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if p := r.pools[number]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("pool %d: there is none: %w", number, symmem.ErrClosed)
}

// findPool returns the open rank and a pool by its number.
func (l *Library) findPool(number int) (*rank, *pool, error) {
	r, err := l.current()
	if err != nil {
		return nil, nil, err
	}
	p, err := r.pool(number)
	return r, p, err
}

// localPool returns the pool of memory of this rank's own.
func (r *rank) localPool() (p *pool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	local := &r.pools[Pools]
	if *local == nil {
		*local, err = r.newPool(symmem.PoolOptions{})
	}
	return *local, err
}

// all lists the open pools in the order of their numbers, and then the local one, which has no
// domain.
func (r *rank) all() []*pool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(r.pools[:]), func(p *pool) bool { return p == nil })
}

// open finds the open pool that a buffer is of, or nil.
func (r *rank) open(of *symmem.Pool) *pool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, p := range r.pools {
		if p != nil && p.Pool == of {
			return p
		}
	}
	return nil
}

// live counts the buffers of open pools that callers hold.
func (r *rank) live() (count int, bytes int64) {
	for _, p := range r.all() {
		c, b := p.live()
		count, bytes = count+c, bytes+b
	}
	return count, bytes
}

// live counts the buffers that callers hold.
func (p *pool) live() (count int, bytes int64) { return p.interop.Live(p.Pool) }

// OpenPool makes a pool whose domain is a group, and returns its number.
func (l *Library) OpenPool(domain uint64, text []byte) (int, error) {
	r, g, err := l.find(domain)
	if err != nil {
		return 0, err
	}
	var o PoolOptions
	if err := decode(text, &o); err != nil {
		return 0, err
	}
	options, err := o.pool(g.Group)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	number := slices.Index(r.pools[:Pools], nil)
	if number < 0 {
		return 0, fmt.Errorf("opening a pool: there are %d already: %w", Pools, symmem.ErrInvalid)
	}
	if r.pools[number], err = r.newPool(options); err != nil {
		return 0, err
	}
	l.words.Pending.Add(1)
	return number, nil
}

// ClosePool gives a pool's memory back; live buffers are treated as by Close.
func (l *Library) ClosePool(number int, force bool) error {
	r, p, err := l.findPool(number)
	if err != nil {
		return err
	}
	if number <= 0 {
		return fmt.Errorf("closing pool %d: symmem_close does that: %w", number, symmem.ErrInvalid)
	}
	if count, bytes := p.live(); count > 0 && !force {
		return fmt.Errorf("closing pool %d: %d buffers of %d bytes: %w", number, count, bytes, ErrLive)
	}
	err = p.end()
	r.mu.Lock()
	if r.pools[number] == p { // it may be another one, after another close
		r.pools[number] = nil
	}
	r.mu.Unlock()
	return errors.Join(err, p.Close())
}

// Alloc allocates from a pool on a foreign stream, for a call site.
func (l *Library) Alloc(number int, bytes uint64, stream uintptr, site uint32) (uintptr, error) {
	r, p, err := l.findPool(number)
	if err != nil {
		return 0, err
	}
	if err := checkSize("allocating", bytes); err != nil {
		return 0, err
	}
	s, err := r.stream(stream)
	if err != nil {
		return 0, err
	}
	return p.alloc(s, int64(bytes), site)
}

// maxBytes is more than any device has.
const maxBytes = 1 << 46

func checkSize(doing string, bytes uint64) error {
	if bytes > maxBytes {
		return fmt.Errorf("%s %d bytes: %w: no pool has more than %d", doing, bytes, symmem.ErrSize,
			int64(maxBytes))
	}
	return nil
}

func (p *pool) alloc(s *symmem.Stream, bytes int64, site uint32) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.flushHeld(); err != nil {
		return 0, err
	}
	b, err := p.interop.At(site).Alloc(p.Pool, s, bytes)
	return b.Address(), err
}

// Free gives a buffer back. With later it takes effect at the next event that ranks have in common.
// Buffers of pools that were closed over them are freed at once.
func (l *Library) Free(address uintptr, later bool) error {
	r, err := l.current()
	if err == nil {
		var b symmem.Buffer
		if b, err = r.rt.Interop().Retire(address); err == nil {
			return r.free(b, later)
		}
		if !errors.Is(err, symmem.ErrForeign) {
			return err
		}
	}
	if known, failed := l.kept.free(address); known {
		return failed
	}
	return err
}

// free frees a buffer, at once if its pool was closed.
func (r *rank) free(b symmem.Buffer, later bool) error {
	p := r.open(b.Pool())
	if p == nil {
		return b.Free()
	}
	return p.free(b, later)
}

func (p *pool) free(b symmem.Buffer, later bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freed = append(p.freed, b)
	if later && !p.ended {
		return nil
	}
	return p.flushHeld()
}

// flushHeld makes the frees so far take effect, ordered by place: the order in which they came may
// differ between ranks. p.mu is held.
func (p *pool) flushHeld() error {
	if len(p.freed) == 0 {
		return nil
	}
	slices.SortFunc(p.freed, inOrder)
	var failed error
	for _, b := range p.freed {
		failed = errors.Join(failed, b.Free())
	}
	clear(p.freed)
	p.freed = p.freed[:0]
	return failed
}

// flush is flushHeld for callers that do not hold p.mu.
func (p *pool) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flushHeld()
}

// end makes the frees so far take effect, and later ones at once: nothing would flush them.
func (p *pool) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	return p.flushHeld()
}

// inOrder compares buffers by their places.
func inOrder(a, b symmem.Buffer) int {
	return cmp.Or(cmp.Compare(a.Segment(), b.Segment()), cmp.Compare(a.Offset(), b.Offset()))
}

// Reserve makes memory up front for a stream and a call site, and registers it with a group unless
// that is 0.
func (l *Library) Reserve(
	number int, bytes uint64, stream uintptr, handle uint64, site uint32,
) error {
	r, p, err := l.findPool(number)
	if err != nil {
		return err
	}
	if err := checkSize("reserving", bytes); err != nil {
		return err
	}
	s, err := r.stream(stream)
	if err != nil {
		return err
	}
	if err := p.flush(); err != nil {
		return err
	}
	err = l.apart("reserving", func(ctx context.Context) error {
		return p.interop.At(site).Reserve(ctx, p.Pool, s, int64(bytes), nil)
	})
	if err != nil || handle == 0 {
		return err
	}
	return l.RegisterPending(handle, number, stream)
}

// flushedPool finds a pool whose gathered frees are in its history.
func (l *Library) flushedPool(number int) (*pool, error) {
	_, p, err := l.findPool(number)
	if err != nil {
		return nil, err
	}
	return p, p.flush()
}

// Trim gives segments without live buffers back: collective over the pool's domain.
func (l *Library) Trim(number int, keep uint64) error {
	p, err := l.flushedPool(number)
	if err != nil {
		return err
	}
	return l.apart("trimming", func(ctx context.Context) error {
		return p.Trim(ctx, int64(min(keep, maxBytes)))
	})
}

// DeviceFits refuses an allocation for another device than this rank's.
func (l *Library) DeviceFits(device int) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	if own := r.rt.Device().Ordinal; own >= 0 && device != own {
		return fmt.Errorf("allocating on device %d: this rank's is %d: %w",
			device, own, driver.ErrUnsupported)
	}
	return nil
}

// Note puts numbers of the caller's into the history of a pool, for a call site.
func (l *Library) Note(number int, kind, value int64, site uint32) error {
	p, err := l.flushedPool(number)
	if err != nil {
		return err
	}
	return p.interop.At(site).Note(p.Pool, kind, value)
}

// maxSite is the most bytes that a call site may have.
const maxSite = 1 << 12

// Site returns the number of a call site.
func (l *Library) Site(text string) (uint32, error) {
	r, err := l.current()
	if err != nil {
		return 0, err
	}
	if len(text) > maxSite {
		return 0, fmt.Errorf("a call site of %d bytes: %w", len(text), symmem.ErrInvalid)
	}
	return r.rt.Interop().Site(text), nil
}

// place is what Locate returns.
type place struct {
	Pool    int    `json:"pool"`
	Segment int    `json:"segment"`
	Offset  int64  `json:"offset"`
	Bytes   int64  `json:"bytes"`
	Live    bool   `json:"live"`
	Address uint64 `json:"address"`
}

// Locate says where an address lies, as JSON: in which buffer, or in which segment if in none.
func (l *Library) Locate(address uintptr) (string, error) {
	r, err := l.current()
	if err != nil {
		return "", err
	}
	b, err := r.rt.Interop().Buffer(address)
	if p := r.open(b.Pool()); err == nil && p != nil {
		return encode(place{
			Pool: r.number(p), Segment: b.Segment(), Live: true, Bytes: b.Size(),
			Offset: b.Offset() + int64(address-b.Address()), Address: uint64(b.Address()),
		})
	}
	for _, p := range r.all() {
		for s := range p.Segments() {
			if offset := address - s.Address; offset < uintptr(s.Bytes) {
				return encode(place{
					Pool: r.number(p), Segment: s.Segment, Offset: int64(offset), Address: uint64(s.Address),
				})
			}
		}
	}
	return "", fmt.Errorf("locating %#x: no open pool has memory there: %w", address,
		symmem.ErrForeign)
}

// number is that of a pool, or Local.
func (r *rank) number(p *pool) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Index(r.pools[:Pools], p)
}
