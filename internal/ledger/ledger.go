package ledger

import (
	"math/bits"

	"symmem/event"
)

const (
	// DefaultKept is the default number of events that a ledger keeps, in 3 MiB.
	DefaultKept = 1 << 16

	// upkeepInterval is the number of events between calls of upkeep, the ring's minimum capacity,
	// and the first stride.
	upkeepInterval = 64

	// maxCheckpoints limits the digests of older events to 8 KiB.
	maxCheckpoints = 1024
)

// Ledger is the history of one pool; [New] creates one. What it keeps about a position depends on
// the position:
//
//	position in [Floor, Position]    event and digest
//	multiples of Stride below Floor  digest
//	the agreed position              digest
//	anything else below Floor        nothing
type Ledger struct {
	position uint64
	digest   uint64
	start    uint64 // position of the latest Restart; earlier events are unknown
	// ring stores event p at index p%len(ring). Its length, a power of two, doubles until it
	// reaches kept.
	ring []entry
	kept uint64

	stride      uint64   // power of two
	checkpoints []uint64 // digest at i*stride

	agreed       uint64
	agreedDigest uint64
}

// entry stores an event and the digest before it in 48 bytes.
type entry struct {
	event.Placement
	before uint64
}

// New returns an empty ledger that keeps the given number of events, rounded up to a power of two.
// 0 selects DefaultKept.
func New(kept int) *Ledger {
	if kept <= 0 {
		kept = DefaultKept
	}
	kept = max(kept, upkeepInterval)
	return &Ledger{
		digest:       Empty,
		agreedDigest: Empty,
		kept:         1 << bits.Len64(uint64(kept-1)),
		stride:       upkeepInterval,
	}
}

// Absorb appends the fields of e that ranks compare, and returns the event's position. site is an
// index in a [Sites] table. Absorb allocates only while the ring grows.
func (l *Ledger) Absorb(e *event.Event, site uint32) uint64 {
	p := event.PackPlacement(e, site)
	return l.append(p.StreamSegment, p.Offset, p.Size, p.Requested, p.SiteKind)
}

// Note is like Absorb without a call site. Its arguments fit into registers.
func (l *Ledger) Note(
	kind event.Kind, stream uint32, segment int32, offset, size, requested int64,
) uint64 {
	return l.append(event.PackStreamSegment(stream, segment), offset, size, requested, uint64(kind))
}

func (l *Ledger) append(
	streamSegment uint64, offset, size, requested int64, siteKind uint64,
) uint64 {
	p := l.position
	if p%upkeepInterval == 0 {
		l.upkeep()
	}
	before := l.digest
	kind := event.Kind(siteKind)
	l.digest = roll(before, place(streamSegment, offset), amount(size, requested, kind))
	l.position = p + 1
	e := &l.ring[p&uint64(len(l.ring)-1)]
	e.StreamSegment, e.Offset, e.Size, e.Requested = streamSegment, offset, size, requested
	e.SiteKind, e.before = siteKind, before
	return p
}

// upkeep grows the ring if it is full, and records a checkpoint if one is due. Both happen only at
// multiples of upkeepInterval, because capacities and strides are multiples of it.
func (l *Ledger) upkeep() {
	if n := uint64(len(l.ring)); l.position-l.start == n && n < l.kept {
		grown := make([]entry, max(2*n, upkeepInterval))
		copy(grown, l.ring)
		l.ring = grown
	}
	if l.position%l.stride != 0 {
		return
	}
	if len(l.checkpoints) == maxCheckpoints {
		l.dropEveryOther()
	}
	if l.position%l.stride == 0 {
		l.checkpoints = append(l.checkpoints, l.digest)
	}
}

func (l *Ledger) dropEveryOther() {
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

// NextStart returns the smallest position at which a restarted history may begin.
func (l *Ledger) NextStart() uint64 { return (l.position/l.kept + 1) * l.kept }

// Restart replaces the history with an agreed one, of which only the length and digest are known.
// position is the NextStart of the rank with the longest history. Other ranks reach it only by
// restarting, so comparing a restarted history with another one finds no difference.
func (l *Ledger) Restart(position, digest uint64) {
	l.position, l.digest, l.start = position, digest, position
	l.agreed, l.agreedDigest = position, digest
	l.ring = nil
	l.stride, l.checkpoints = 1<<bits.Len64(position-1), []uint64{Empty}
}

// DigestAt returns the digest of the first position events, if it is still known.
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

// EventAt returns the event at position without its call site, if it is still kept.
func (l *Ledger) EventAt(position uint64) (e event.Event, known bool) {
	if position >= l.position || position < l.Floor() {
		return event.Event{}, false
	}
	l.Load(position, &e)
	return e, true
}

// Load stores the event at position in e and returns the index of its call site. position must be
// between Floor and Position-1. Other fields of e stay unchanged.
func (l *Ledger) Load(position uint64, e *event.Event) (site uint32) {
	p := l.At(position)
	e.Number = position
	p.Load(e)
	return p.Site()
}

// At returns the packed event at position, which must be between Floor and Position-1. The result
// is valid until the next call of Absorb or Note.
func (l *Ledger) At(position uint64) *event.Placement {
	return &l.ring[position&uint64(len(l.ring)-1)].Placement
}

// Agree records that all ranks of an agreement have the same events before position, with the given
// digest. If this ledger differs, Agree returns false. The agreed position never decreases.
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

// Snapshot is the state of a ledger that an agreement needs.
type Snapshot struct {
	Position, Digest uint64
	// Agreed and AgreedDigest are set by [Ledger.Agree].
	Agreed, AgreedDigest uint64
	// Below Floor, only the digests at multiples of Stride are known.
	Floor, Stride uint64
}

// Snapshot returns the current state of l.
func (l *Ledger) Snapshot() Snapshot {
	return Snapshot{
		Position: l.position, Digest: l.digest,
		Agreed: l.agreed, AgreedDigest: l.agreedDigest,
		Floor: l.Floor(), Stride: l.stride,
	}
}
