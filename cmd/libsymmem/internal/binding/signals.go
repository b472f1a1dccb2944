package binding

import (
	"errors"
	"fmt"

	"symmem"
)

// SignalWordBytes is the size of a signal word, through which kernels of different ranks signal
// each other.
const SignalWordBytes = 4

const (
	maxSignalWords     = 1 << 24 // 64 MiB
	signalSegmentBytes = 2 << 20 // the pool maps a segment of at least this size
)

// Arguments that the C functions for signal words do not have.
const (
	defaultStream = 0 // CUDA's default stream
	noSite        = 0 // unknown call site
)

// OpenSignalWords opens count signal words on every rank of the group with a handle. It returns the
// address of each rank's first word, by rank. All ranks of the group must call it.
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

	// Signal words begin as 0, so they need a pool that maps new memory, which contains zeros.
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

// allocSignals allocates memory that the group can access, and returns its address on each rank.
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

// CloseSignalWords closes this rank's signal words, which begin at address. After an error, such as
// a time-out, it can be called again.
func (ws *windows) CloseSignalWords(address uintptr) error {
	if _, err := ws.session.anyRank(); err != nil {
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

		return b.Free() // last, because a repeated call must find the buffer
	}

	return fmt.Errorf("closing signal words at %#x: no open words begin there: %w", address,
		symmem.ErrForeign)
}
