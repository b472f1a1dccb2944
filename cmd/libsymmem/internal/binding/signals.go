package binding

import (
	"errors"
	"fmt"

	"symmem"
)

// SignalWordBytes is the size of a signal word, through which kernels of ranks signal each other.
const SignalWordBytes = 4

const maxSignalWords = 1 << 24 // 64 MiB

// Arguments of calls for which the C caller passes no stream and no call site.
const (
	defaultStream = 0 // the handle of CUDA's default stream
	noSite        = 0 // the call site is unknown
)

// signalSegmentBytes is the smallest size of a segment for signal words.
const signalSegmentBytes = 2 << 20

// OpenSignalWords creates count signal words, all 0, on every rank of a group, and returns the
// address of each rank's first word. It is collective over the group.
//
// The words have their own pool, because only new segments are sure to contain zeros.
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

// allocSignals allocates and registers memory from a new pool, and returns its address on each rank
// of the group.
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

// CloseSignalWords frees this rank's words, which begin at address. If it fails to close the pool,
// for example because of a time-out, it can be called again.
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

		return b.Free() // not earlier, because a second call must find the pool by its buffer
	}

	return fmt.Errorf("closing signal words at %#x: no open words begin there: %w", address,
		symmem.ErrForeign)
}
