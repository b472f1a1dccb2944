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
	signalSegmentBytes = 2 << 20 // minimum size of the memory that the pool maps
)

// Arguments of calls without a given stream or call site.
const (
	defaultStream = 0 // CUDA's default stream
	noSite        = 0 // unknown call site
)

// OpenSignalWords opens count signal words on every rank of a group, and returns the address of the
// first word on each rank. All ranks of the group must call it.
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

	// A new pool maps new memory, which contains zeros, as signal words must.
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
		beginsAtAddress := err == nil && b.Address() == address
		if !beginsAtAddress {
			continue
		}

		p := ws.session.poolTable.findWrapper(b.Pool())
		hasSignalWords := p != nil && p.isForSignals
		if !hasSignalWords {
			continue
		}

		if err := ws.session.poolTable.closeSignals(p); err != nil {
			return err
		}

		return b.Free() // last, so that a repeated call finds the buffer after an error
	}

	return fmt.Errorf("closing signal words at %#x: no open words begin there: %w", address,
		symmem.ErrForeign)
}
