package torch

import (
	"fmt"
	"slices"
	"sync"

	"symmem"
	"symmem/internal/sys"
)

// keeping knows memory that was handed out and is in no open pool: that of pools which were closed
// over live buffers, which callers may still use and free, and segments that were unmapped.
type keeping struct {
	mu    sync.Mutex
	pools []*pool // guarded by mu
	gone  []span  // the latest segments that were unmapped; guarded by mu
}

// span is a range of addresses.
type span struct {
	start uintptr
	bytes int64
}

func (s span) holds(address uintptr) bool { return address-s.start < uintptr(s.bytes) }

// mostGone is how many segments that were unmapped are remembered.
const mostGone = 1024

// keep notes pools that are closed, if buffers of theirs are live.
func (k *keeping) keep(pools ...*pool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range pools {
		if count, _ := p.held(); count == 0 {
			continue
		}
		p.kept = p.kept[:0]
		for s := range p.Segments() {
			if at := (span{s.Address, s.Bytes}); p.holdsLive(at) {
				p.kept = append(p.kept, at)
			}
		}
		k.pools = append(k.pools, p)
	}
}

// unmapped notes the end of a segment.
func (k *keeping) unmapped(e symmem.SegmentEvent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = slices.DeleteFunc(k.gone, func(s span) bool { return s.start == e.Address })
	if len(k.gone) == mostGone {
		k.gone = slices.Delete(k.gone, 0, 1)
	}
	k.gone = append(k.gone, span{e.Address, e.Bytes})
}

// covers refuses memory of buffers that were freed, in pools that are closed. With onHost the
// memory is the host's: something else may be mapped there by now, which is not refused.
func (k *keeping) covers(m symmem.Memory, onHost bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	within := func(s span) bool { return s.holds(m.Address()) }
	for _, p := range k.pools {
		if slices.ContainsFunc(p.kept, within) {
			return p.covers(m)
		}
	}
	if slices.ContainsFunc(k.gone, within) && onHost && !sys.Readable(m.Address()) {
		return fmt.Errorf("memory at %#x: %w", m.Address(), symmem.ErrFreed)
	}
	return nil
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
