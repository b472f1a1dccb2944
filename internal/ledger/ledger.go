package ledger

import (
	"math/bits"
)

const (
	// DefaultKept is how many events a ledger keeps unless told otherwise. A decoding step of a
	// large model makes some thousand events, so this is the last tens of steps, in 3 MiB.
	DefaultKept = 1 << 16

	// turn is how many events pass between two looks at growth and checkpoints. It is the least
	// capacity of the ring and the first stride.
	turn = 64

	// maxCheckpoints bounds the table of older digests, at 8 KiB. After a doubling of the stride
	// it is half full, so a history has between 512 and 1024 checkpoints.
	maxCheckpoints = 1024
)

// Ledger is the history of one pool. It only ever grows; its states are how much of the history is
// still known:
//
//	position in [Floor, Position]    event and digest are kept exactly
//	multiples of Stride below Floor  the digest is kept
//	the agreed position              the digest is kept
//	anything else below Floor        forgotten
//
// A ledger is guarded by the owner of its pool. The zero value is not usable; call [New].
type Ledger struct {
	position uint64
	digest   uint64
	// start is the position of the latest Restart, of whose past nothing is known.
	start uint64
	// ring holds a power of two of entries; it doubles until it has kept entries, so that a small
	// pool stays small. Event p is in ring[p mod len].
	ring []entry
	kept uint64

	stride      uint64   // power of two
	checkpoints []uint64 // digest at i*stride

	agreed       uint64
	agreedDigest uint64
}

// entry is an event as the ring keeps it, in 48 bytes, with the digest before it: so every kept
// event has both ends, since the digest after it stands in the next entry or is the current one.
type entry struct {
	where                   uint64 // stream above, segment below
	offset, size, requested int64
	what                    uint64 // call site above, kind below
	before                  uint64
}

// where packs the stream and the segment of an event.
func where(stream uint32, segment int32) uint64 {
	return uint64(stream)<<32 | uint64(uint32(segment))
}

const siteShift = 8

func (s *entry) event() Event {
	return Event{
		Offset: s.offset, Size: s.size, Requested: s.requested,
		Stream: uint32(s.where >> 32), Segment: int32(uint32(s.where)),
		Site: uint32(s.what >> siteShift), Kind: Kind(s.what & (1<<siteShift - 1)),
	}
}

// New returns an empty ledger that keeps so many events exactly, rounded up to a power of two; 0 is
// DefaultKept.
func New(kept int) *Ledger {
	if kept <= 0 {
		kept = DefaultKept
	}
	kept = max(kept, turn)
	return &Ledger{
		digest:       Empty,
		agreedDigest: Empty,
		kept:         1 << bits.Len64(uint64(kept-1)),
		stride:       turn,
	}
}

// Absorb appends a copy of e and returns its position. It allocates only while the ring still
// grows.
func (l *Ledger) Absorb(e *Event) uint64 {
	return l.append(where(e.Stream, e.Segment), e.Offset, e.Size, e.Requested,
		uint64(e.Site)<<siteShift|uint64(e.Kind))
}

// Note is Absorb of an event whose call site is unknown, given in words, which the compiler keeps
// in registers.
func (l *Ledger) Note(
	kind Kind, stream uint32, segment int32, offset, size, requested int64,
) uint64 {
	return l.append(where(stream, segment), offset, size, requested, uint64(kind))
}

func (l *Ledger) append(where uint64, offset, size, requested int64, what uint64) uint64 {
	p := l.position
	if p%turn == 0 {
		l.turn()
	}
	before := l.digest
	l.digest = roll(before, place(where, offset), amount(size, requested, Kind(what)))
	l.position = p + 1
	s := &l.ring[p&uint64(len(l.ring)-1)]
	s.where, s.offset, s.size, s.requested = where, offset, size, requested
	s.what, s.before = what, before
	return p
}

// turn grows the ring if it is full and may grow, and notes a checkpoint if one is due. Both happen
// only at multiples of turn, because capacities and strides are powers of two from turn upwards.
func (l *Ledger) turn() {
	if n := uint64(len(l.ring)); l.position-l.start == n && n < l.kept {
		grown := make([]entry, max(2*n, turn))
		copy(grown, l.ring)
		l.ring = grown
	}
	if l.position%l.stride != 0 {
		return
	}
	if len(l.checkpoints) == maxCheckpoints {
		l.thin()
	}
	if l.position%l.stride == 0 {
		l.checkpoints = append(l.checkpoints, l.digest)
	}
}

// thin drops every other checkpoint.
func (l *Ledger) thin() {
	half := len(l.checkpoints) / 2
	for i := range half {
		l.checkpoints[i] = l.checkpoints[2*i]
	}
	l.checkpoints = l.checkpoints[:half]
	l.stride *= 2
}

// Position returns the number of events absorbed.
func (l *Ledger) Position() uint64 { return l.position }

// Floor returns the first position whose event is still kept.
func (l *Ledger) Floor() uint64 {
	return max(l.start, l.position-min(l.position, uint64(len(l.ring))))
}

// NextStart returns the least position after all events at which Restart may begin.
func (l *Ledger) NextStart() uint64 { return (l.position/l.kept + 1) * l.kept }

// Restart replaces the history by an agreed one, of which only its length and digest are known.
// position is the NextStart of the rank with the longest history. A rank that has not restarted yet
// has not reached that position, so comparing the two histories never reports a difference.
func (l *Ledger) Restart(position, digest uint64) {
	l.position, l.digest, l.start = position, digest, position
	l.agreed, l.agreedDigest = position, digest
	l.ring = nil
	l.stride, l.checkpoints = 1<<bits.Len64(position-1), []uint64{Empty}
}

// DigestAt returns the digest of the first position events, and whether it is still known.
func (l *Ledger) DigestAt(position uint64) (uint64, bool) {
	switch {
	case position > l.position:
		return 0, false
	case position == l.position:
		return l.digest, true
	case position >= l.Floor():
		return l.ring[position&uint64(len(l.ring)-1)].before, true
	case position == l.agreed:
		return l.agreedDigest, true
	case position%l.stride == 0:
		return l.checkpoints[position/l.stride], true
	}
	return 0, false
}

// EventAt returns the event at position, and whether it is still kept.
func (l *Ledger) EventAt(position uint64) (Event, bool) {
	if position >= l.position || position < l.Floor() {
		return Event{}, false
	}
	return l.ring[position&uint64(len(l.ring)-1)].event(), true
}

// Agree notes that the first position events, with the given digest, were found equal on all ranks
// of an agreement. What is agreed needs never be compared again. The agreed position only rises.
// Agree reports whether the digest fits this history; a position whose digest does not fit is
// refused.
func (l *Ledger) Agree(position, digest uint64) bool {
	if position > l.position {
		return false
	}
	if own, known := l.DigestAt(position); known && own != digest {
		return false
	}
	if position > l.agreed {
		l.agreed, l.agreedDigest = position, digest
	}
	return true
}

// Snapshot is what an agreement needs to know of a ledger at one instant.
type Snapshot struct {
	// Position and Digest describe the whole history.
	Position, Digest uint64
	// Agreed and AgreedDigest are what [Ledger.Agree] set.
	Agreed, AgreedDigest uint64
	// Floor is the first position whose event is kept. Below it only the digests at multiples
	// of Stride are known.
	Floor, Stride uint64
}

// Snapshot returns the state of l now.
func (l *Ledger) Snapshot() Snapshot {
	return Snapshot{
		Position: l.position, Digest: l.digest,
		Agreed: l.agreed, AgreedDigest: l.agreedDigest,
		Floor: l.Floor(), Stride: l.stride,
	}
}
