package binding

import (
	"fmt"
	"slices"
	"sync"

	"symmem"
	"symmem/internal/sys"
)

// keeping tracks memory that was allocated by earlier ranks of this process: buffers that were live
// at a Close, which callers may still use and free, and unmapped segments.
type keeping struct {
	mu    sync.Mutex
	ranks []symmem.Interop // closed, with live buffers; replaced, never changed; guarded by mu

	// goneMu is a leaf: pools call unmapped with their lock held.
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

// keep adds a rank that is about to be closed, if buffers are live.
func (k *keeping) keep(rank symmem.Interop) {
	if holdsBuffers(rank) {
		k.replace(func(ranks []symmem.Interop) []symmem.Interop { return append(ranks, rank) })
	}
}

func holdsBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil)
	return buffers > 0
}

// replace replaces the list of ranks by a changed copy.
func (k *keeping) replace(change func([]symmem.Interop) []symmem.Interop) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = change(slices.Clone(k.ranks))
}

// closed lists the ranks. No lock is held while their pools are asked, which may be locked for as
// long as a call waits for other ranks.
func (k *keeping) closed() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
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

// covers refuses memory of buffers of earlier ranks that were freed. With onHost the memory is the
// host's: something else may be mapped there by now, which is not refused.
func (k *keeping) covers(address uintptr, bytes int64, onHost bool) error {
	for _, rank := range k.closed() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}
	if onHost && k.unmappedAt(address) && !sys.Readable(address) {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}
	return nil
}

// free frees a buffer of an earlier rank, and reports whether it was one.
func (k *keeping) free(address uintptr) (bool, error) {
	for _, rank := range k.closed() {
		b, err := rank.Retire(address)
		if err != nil {
			continue
		}
		if !holdsBuffers(rank) {
			k.replace(func(ranks []symmem.Interop) []symmem.Interop {
				return slices.DeleteFunc(ranks, func(r symmem.Interop) bool { return r == rank })
			})
		}
		return true, b.Free()
	}
	return false, nil
}
