package binding

import (
	"errors"
	"fmt"

	"symmem"
)

// Kernels of ranks can signal each other through signal words. Suppose that each of two ranks opens
// 100 signal words. A kernel of rank 0 writes 1 to word 7 of rank 1, and a kernel of rank 1 waits
// until its word 7 is 1.
//
// All words must be 0 at first. Only a new segment, a piece of memory that was just mapped, is sure
// to contain zeros. So each call of OpenSignalWords opens a pool, which maps a new segment.

// SignalWordBytes is the size of a signal word.
const SignalWordBytes = 4

const (
	maxSignalWords     = 1 << 24 // 64 MiB
	signalSegmentBytes = 2 << 20 // the pool maps a segment of at least this size
)

// Arguments for which the C caller passes no value.
const (
	defaultStream = 0 // the handle of CUDA's default stream
	noSite        = 0 // the call site is unknown
)

// OpenSignalWords opens count signal words on every rank of a group. It returns the address of each
// rank's first word, by rank. All ranks of the group must call it. handle is the group's handle, by
// which C passes the group.
func (ws *windows) OpenSignalWords(handle uint64, count uint64) ([]uintptr, error) {
	r, g, err := ws.session.group(handle)
	if err != nil {
		return nil, err
	}

	if count == 0 || count > maxSignalWords {
		return nil, fmt.Errorf("opening %d signal words: want 1 to %d: %w", count, maxSignalWords,
			symmem.ErrInvalid)
	}

	s, err := r.findStream(defaultStream)
	if err != nil {
		return nil, err
	}

	p, err := ws.session.poolTable.openSignals(r, symmem.PoolOptions{
		Domain: g.Group, FirstSegment: signalSegmentBytes,
	})
	if err != nil {
		return nil, err
	}

	addresses, err := r.allocSignals(g, p, s, int64(count*SignalWordBytes))
	if err != nil {
		closeErr := ws.session.poolTable.closeSignals(p)
		return nil, errors.Join(err, closeErr)
	}

	return addresses, nil
}

// allocSignals allocates memory in a new pool, and registers it with the group, so that all ranks
// can access it. It returns the address on each rank.
func (r *rank) allocSignals(
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

// CloseSignalWords closes this rank's signal words, which begin at address. If it cannot close the
// pool, for example because of a time-out, it can be called again.
func (ws *windows) CloseSignalWords(address uintptr) error {
	if _, err := ws.session.anyRank(); err != nil {
		return err
	}

	for _, r := range ws.session.ranks.allRanks() {
		b, err := r.rt.Interop().Buffer(address)
		beginsAtAddress := err == nil && b.Address() == address
		if !beginsAtAddress {
			continue
		}

		p := ws.session.poolTable.findWrapper(b.Pool())
		areSignalWords := p != nil && p.isForSignals
		if !areSignalWords {
			continue
		}

		if err := ws.session.poolTable.closeSignals(p); err != nil {
			return err
		}

		return b.Free() // not earlier, because a second call must find the pool by its buffer
	}

	return fmt.Errorf("closing signal words at %#x: no open words begin there: %w", address,
		symmem.ErrForeign)
}
