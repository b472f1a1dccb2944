package binding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"symmem"
)

// windows implements the functions in symmem.h that register memory with groups. A window is
// registered memory of all ranks of a group: each rank can access the memory of the others.
type windows struct{ session *session }

// ScopeEnd implements symmem_scope_end: it registers the new memory of all pools that the group's
// ranks share. It need not be called again while Counters.Pending equals the result.
func (ws *windows) ScopeEnd(handle uint64, stream uintptr) (pendingCount int64, err error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return 0, err
	}

	// Read the counter first, because an allocation during the loop increases it.
	pendingCount = ws.session.counters.Pending.Load()
	for _, p := range ws.sharedPools(r, g) {
		if err := r.register(g, p, stream); err != nil {
			return 0, err
		}
	}

	return pendingCount, nil
}

// sharedPools returns the pools that all ranks of a group share, oldest first.
func (ws *windows) sharedPools(r *rank, g *group) []*pool {
	owned := ws.session.poolTable.ownedBy(r)
	return slices.DeleteFunc(owned, func(p *pool) bool { return !g.sharesPool(p) })
}

// RegisterPending registers the new memory of one pool.
func (ws *windows) RegisterPending(handle uint64, poolNumber int, stream uintptr) error {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return err
	}

	owner, p, err := ws.session.pool(poolNumber)
	if err != nil {
		return err
	}

	if owner != r {
		return fmt.Errorf("registering pool %d with group %s: they belong to different worlds: %w",
			poolNumber, g.ID(), symmem.ErrInvalid)
	}

	return r.register(g, p, stream)
}

// IsSymmetric reports whether a range of memory is within one window of an open group.
func (ws *windows) IsSymmetric(handle uint64, bytes uint64, address uintptr) bool {
	r, g, err := ws.session.group(handle)
	if err != nil || bytes > maxBytes {
		return false
	}

	return r.rt.Interop().IsSymmetric(g.Group, address, int64(bytes))
}

// PeerAddresses returns the addresses at which this rank can access a range on each rank. The range
// must be within one window.
func (ws *windows) PeerAddresses(
	handle uint64, bytes uint64, address uintptr,
) ([]uintptr, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	if bytes > maxBytes {
		return nil, fmt.Errorf("finding the addresses of %d bytes: the maximum is %d: %w", bytes,
			int64(maxBytes), symmem.ErrInvalid)
	}

	return r.rt.Interop().PeerAddresses(g.Group, address, int64(bytes))
}

// NCCLWindow identifies a range of memory for NCCL's device API.
type NCCLWindow struct {
	Communicator uintptr // the ncclComm_t
	Window       uintptr // the ncclWindow_t
	Offset       uintptr // of the range, in bytes
}

// NCCLWindow returns the NCCLWindow of a range of memory. The range must be within one window.
func (ws *windows) NCCLWindow(
	handle uint64, bytes uint64, address uintptr,
) (w NCCLWindow, err error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return w, err
	}

	if bytes > maxBytes {
		return w, fmt.Errorf("finding the window of %d bytes: the maximum is %d: %w", bytes,
			int64(maxBytes), symmem.ErrInvalid)
	}

	w.Communicator = g.Handle()
	w.Window, w.Offset, err = r.rt.Interop().WindowHandle(g.Group, address, int64(bytes))
	return w, err
}

// Window is this rank's part of a window. It has the memory layout of an entry in the output of
// symmem_windows.
type Window struct{ Address, Bytes int64 }

// Windows returns a group's windows in order of address.
func (ws *windows) Windows(handle uint64) ([]Window, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	var all []Window
	for _, p := range ws.session.poolTable.ownedBy(r) {
		for s := range p.Segments() {
			isWindow := r.rt.Interop().IsSymmetric(g.Group, s.Address, s.Bytes)
			if isWindow {
				all = append(all, Window{Address: int64(s.Address), Bytes: s.Bytes})
			}
		}
	}

	slices.SortFunc(all, func(a, b Window) int { return cmp.Compare(a.Address, b.Address) })
	return all, nil
}

// SignalWordBytes is the size of a signal word. Kernels on different ranks signal each other
// through signal words.
const SignalWordBytes = 4

// OpenSignalWords allocates count signal words on every rank of a group, and returns the address of
// the first word on each rank. The words are 0. All ranks of the group must call it.
func (ws *windows) OpenSignalWords(handle uint64, count uint64) ([]uintptr, error) {
	const maxWords = 1 << 24 // 64 MiB
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	if count == 0 || count > maxWords {
		return nil, fmt.Errorf("opening %d signal words: want 1 to %d: %w", count, maxWords,
			symmem.ErrInvalid)
	}

	s, err := r.findStream(defaultStream)
	if err != nil {
		return nil, err
	}

	// The words need a new pool, because only newly mapped memory is certain to contain zeros.
	const segmentBytes = 2 << 20
	p, err := ws.session.poolTable.openSignals(r, symmem.PoolOptions{
		Domain: g.Group, FirstSegment: segmentBytes,
	})
	if err != nil {
		return nil, err
	}

	addresses, err := r.allocWindow(g, p, s, int64(count*SignalWordBytes))
	if err != nil {
		closeErr := ws.session.poolTable.closeSignals(p)
		return nil, errors.Join(err, closeErr)
	}

	return addresses, nil
}

// allocWindow allocates memory in a window of a group, and returns its address on each rank.
func (r *rank) allocWindow(
	g *group, p *pool, s *symmem.Stream, bytes int64,
) ([]uintptr, error) {
	address, err := p.alloc(s, bytes, noSite)
	if err != nil {
		return nil, err
	}

	if err := r.register(g, p, defaultStream); err != nil {
		return nil, err
	}

	return r.rt.Interop().PeerAddresses(g.Group, address, bytes)
}

// CloseSignalWords frees this rank's signal words, which begin at address. After an error, it can
// be called again.
func (ws *windows) CloseSignalWords(address uintptr) error {
	if err := ws.session.checkOpen(); err != nil {
		return err
	}

	for _, r := range ws.session.ranks.allRanks() {
		b, err := r.rt.Interop().Buffer(address)
		if err != nil || b.Address() != address {
			continue
		}

		p := ws.session.poolTable.findWrapper(b.Pool())
		if p == nil || !p.isForSignals {
			continue
		}

		if err := ws.session.poolTable.closeSignals(p); err != nil {
			return err
		}

		return b.Free() // last, so that a call after an error finds the buffer
	}

	return fmt.Errorf("closing signal words at %#x: no open words begin there: %w", address,
		symmem.ErrForeign)
}
