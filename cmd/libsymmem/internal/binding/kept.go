package binding

import (
	"fmt"
	"slices"
	"sync"

	"symmem"
	"symmem/internal/sys"
)

// keeping tracks memory that was allocated from pools and is in no open pool: buffers that were
// live when their pool was closed, which callers may still use and free, and unmapped segments.
type keeping struct {
	mu    sync.Mutex
	pools []*pool // guarded by mu

	// goneMu is a leaf: pools call unmapped with their lock held, while mu is held around those locks.
	goneMu sync.Mutex
	gone   []span // the latest segments that were unmapped; guarded by goneMu
}

// span is a range of addresses.
type span struct {
	start uintptr
	bytes int64
}

func (s span) holds(address uintptr) bool { return address-s.start < uintptr(s.bytes) }

// mostGone is how many segments that were unmapped are remembered.
const mostGone = 1024

// keep notes pools that are closed and have live buffers, each once. It lists their segments
// without holding mu, as a pool may be locked for as long as a call waits for other ranks.
func (k *keeping) keep(pools ...*pool) {
	for _, p := range pools {
		segments := p.liveSegments()
		if len(segments) == 0 {
			continue
		}
		k.mu.Lock()
		// Another close of the pool may have noted it, and its buffers may have been freed since.
		if count, _ := p.held(); count > 0 && !slices.Contains(k.pools, p) {
			p.kept = segments
			k.pools = append(k.pools, p)
		}
		k.mu.Unlock()
	}
}

// unmapped notes the end of a segment. Its caller holds the lock of a pool.
func (k *keeping) unmapped(e symmem.SegmentEvent) {
	k.goneMu.Lock()
	defer k.goneMu.Unlock()
	k.gone = slices.DeleteFunc(k.gone, func(s span) bool { return s.start == e.Address })
	if len(k.gone) == mostGone {
		k.gone = slices.Delete(k.gone, 0, 1)
	}
	k.gone = append(k.gone, span{e.Address, e.Bytes})
}

// unmappedAt reports whether the latest segment at an address was unmapped.
func (k *keeping) unmappedAt(address uintptr) bool {
	k.goneMu.Lock()
	defer k.goneMu.Unlock()
	return slices.ContainsFunc(k.gone, func(s span) bool { return s.holds(address) })
}

// covers refuses memory of buffers that were freed, in pools that are closed. With onHost the
// memory is the host's: something else may be mapped there by now, which is not refused.
func (k *keeping) covers(m symmem.Memory, onHost bool) error {
	if p := k.closedPoolOf(m.Address()); p != nil {
		return p.covers(m)
	}
	if onHost && k.unmappedAt(m.Address()) && !sys.Readable(m.Address()) {
		return fmt.Errorf("memory at %#x: %w", m.Address(), symmem.ErrFreed)
	}
	return nil
}

// closedPoolOf finds the closed pool in whose segments an address lies.
func (k *keeping) closedPoolOf(address uintptr) *pool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pools {
		if slices.ContainsFunc(p.kept, func(s span) bool { return s.holds(address) }) {
			return p
		}
	}
	return nil
}

// liveSegments lists the segments that have buffers which callers hold.
func (p *pool) liveSegments() (all []span) {
	if count, _ := p.held(); count == 0 {
		return nil
	}
	for s := range p.Segments() {
		if at := (span{s.Address, s.Bytes}); p.holdsLive(at) {
			all = append(all, at)
		}
	}
	return all
}

// holdsLive reports whether a buffer that callers hold lies in a segment.
func (p *pool) holdsLive(segment span) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.live.buffers, func(b symmem.Buffer) bool {
		return segment.holds(b.Address())
	})
}

// free frees a buffer of a closed pool, and reports whether it was one.
func (k *keeping) free(address uintptr) (bool, error) {
	b, ok := k.take(address)
	if !ok {
		return false, nil
	}
	return true, b.Free()
}

// take removes a buffer of a closed pool.
func (k *keeping) take(address uintptr) (symmem.Buffer, bool) {
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
		return b, true
	}
	return symmem.Buffer{}, false
}
