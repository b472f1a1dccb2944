package binding

import (
	"errors"
	"fmt"

	"symmem"
)

// SignalWordBytes is the size of a signal word.
const SignalWordBytes = 4

const maxSignalWords = 1 << 24

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
	s, err := r.findStream(0)
	if err != nil {
		return nil, err
	}
	p, err := ws.session.poolTable.openSignals(r, symmem.PoolOptions{
		Domain: g.Group, FirstSegment: signalSegmentBytes,
	})
	if err != nil {
		return nil, err
	}
	bytes := int64(count * SignalWordBytes)
	addresses, err := func() ([]uintptr, error) {
		address, err := p.alloc(s, bytes, 0)
		if err != nil {
			return nil, err
		}
		if err := r.register(g, p, 0); err != nil {
			return nil, err
		}
		return r.rt.Interop().PeerAddresses(g.Group, address, bytes)
	}()
	if err != nil {
		return nil, errors.Join(err, ws.session.poolTable.closeSignals(p))
	}
	return addresses, nil
}

// CloseSignalWords frees this rank's words. address is the address of the first one. After an error
// of closing the pool, such as a time-out, it can be called again.
func (ws *windows) CloseSignalWords(address uintptr) error {
	if _, err := ws.session.anyRank(); err != nil {
		return err
	}
	for _, r := range ws.session.ranks.allRanks() {
		b, err := r.rt.Interop().Buffer(address)
		if err != nil || b.Address() != address {
			continue
		}
		if p := ws.session.poolTable.findWrapper(b.Pool()); p != nil && p.isForSignals {
			if err := ws.session.poolTable.closeSignals(p); err != nil {
				return err
			}
			return b.Free() // not earlier, because a retry finds the pool by its buffer
		}
	}
	return fmt.Errorf("closing signal words at %#x: no open words begin there: %w", address,
		symmem.ErrForeign)
}
