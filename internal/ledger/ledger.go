package ledger

import (
	"math/bits"

	"symmem/event"
)

// A Ledger is the history of one pool: a sequence of events, such as "allocated 1 MiB at offset 0".
// All ranks should have the same events. To check this, they compare digests. The digest at a
// position is a hash of all events before the position.
//
// Old events and digests take too much memory, so a Ledger keeps only some of them. Suppose that
// there have been 100000 events, and that the Ledger keeps 65536:
//
//	events 34464 to 99999      the event, and the digest at its position
//	position 100000            the digest of all events
//	positions 0, 128, 256 ...  the digests, called checkpoints
//	the agreed position        the digest; before it, all ranks are known to have the same events
//
// The distance of the checkpoints, called stride, doubles when they become too many.

const (
	// DefaultKept is the default number of kept events, which occupy 3 MiB.
	DefaultKept = 1 << 16

	// maintenanceInterval is the number of events between calls of maintain. It is also the initial
	// stride, and the minimum length of Ledger.entries.
	maintenanceInterval = 64

	// maxCheckpoints is the maximum length of Ledger.checkpoints, which then occupies 8 KiB.
	maxCheckpoints = 1024
)

// Ledger is the history of one pool. Events are numbered by their positions from 0.
type Ledger struct {
	position        uint64 // number of events, and position of the next one
	digest          uint64 // of all events
	restartPosition uint64 // argument of the latest Restart, or 0; earlier events are unknown
	// entries is a ring buffer: the event at position p is at index p%len(entries). The length, a
	// power of two, doubles until it reaches maxEntries.
	entries    []entry
	maxEntries uint64 // a power of two

	stride      uint64   // distance of the checkpoints, a power of two
	checkpoints []uint64 // digests at 0, stride, 2*stride and so on

	agreedPosition uint64 // position of the latest Restart, or a higher one passed to Agree
	agreedDigest   uint64 // digest at agreedPosition
}

// entry is a kept event.
type entry struct {
	event.Placement
	digestBefore uint64 // digest of all earlier events
}

// New returns an empty ledger that keeps the last maxEntries events, rounded up to a power of two,
// and at least 64. If maxEntries is 0, it keeps DefaultKept.
func New(maxEntries int) *Ledger {
	if maxEntries <= 0 {
		maxEntries = DefaultKept
	}

	maxEntries = max(maxEntries, maintenanceInterval)
	return &Ledger{
		digest:       Empty,
		agreedDigest: Empty,
		maxEntries:   1 << bits.Len64(uint64(maxEntries-1)), // rounded up
		stride:       maintenanceInterval,
	}
}

// Append appends the fields of e that ranks compare, and returns the event's position. site is the
// index of the call site in a [Sites] table; ranks do not compare it. Append allocates memory only
// until the ledger has its maximum size.
func (l *Ledger) Append(e *event.Event, site uint32) uint64 {
	p := event.PackPlacement(e, site)
	return l.append(p.StreamSegment, p.Offset, p.Size, p.Requested, p.SiteKind)
}

// AppendWithoutSite is like Append without a site. It is faster, because its arguments are passed
// in registers.
func (l *Ledger) AppendWithoutSite(
	kind event.Kind, stream uint32, segment int32, offset, size, requested int64,
) uint64 {
	return l.append(event.PackStreamSegment(stream, segment), offset, size, requested, uint64(kind))
}

// append appends an event and returns its position. The arguments are the fields of
// event.Placement. They are passed separately, and thus in registers.
func (l *Ledger) append(
	streamSegment uint64, offset, size, requested int64, siteKind uint64,
) uint64 {
	position := l.position
	if position%maintenanceInterval == 0 {
		l.maintain()
	}

	digestBefore := l.digest
	kind := event.Kind(siteKind) // the low bits, without the site
	l.digest = extendDigest(digestBefore,
		mixPlace(streamSegment, offset), mixSizes(size, requested, kind))
	l.position = position + 1
	e := &l.entries[position&uint64(len(l.entries)-1)] // position%len(l.entries), but faster
	e.StreamSegment = streamSegment
	e.Offset = offset
	e.Size = size
	e.Requested = requested
	e.SiteKind = siteKind
	e.digestBefore = digestBefore
	return position
}

// maintain makes room for the next maintenanceInterval events, and adds a checkpoint if one is due.
// The length of entries and the stride are multiples of this number, so nothing is due in between.
func (l *Ledger) maintain() {
	l.growIfFull()
	if l.position%l.stride == 0 {
		l.addCheckpoint()
	}
}

// growIfFull makes entries longer if all of them are used.
func (l *Ledger) growIfFull() {
	n := uint64(len(l.entries))
	isFull := l.position-l.restartPosition == n
	if isFull && n < l.maxEntries {
		newEntries := make([]entry, max(2*n, maintenanceInterval))
		// The index of each event stays the same: a restart position is a multiple of maxEntries, and
		// thus of both lengths.
		copy(newEntries, l.entries)
		l.entries = newEntries
	}
}

// addCheckpoint adds a checkpoint at the current position, unless the stride must double and the
// position is no multiple of the new stride.
func (l *Ledger) addCheckpoint() {
	if len(l.checkpoints) == maxCheckpoints {
		l.dropEverySecondCheckpoint()
	}

	if l.position%l.stride == 0 {
		l.checkpoints = append(l.checkpoints, l.digest)
	}
}

// dropEverySecondCheckpoint keeps the checkpoints at multiples of the doubled stride.
func (l *Ledger) dropEverySecondCheckpoint() {
	half := len(l.checkpoints) / 2
	for i := range half {
		l.checkpoints[i] = l.checkpoints[2*i]
	}

	l.checkpoints = l.checkpoints[:half]
	l.stride *= 2
}

// Position returns the number of events.
func (l *Ledger) Position() uint64 { return l.position }

// Floor returns the first position with a kept event, or Position if no event is kept.
func (l *Ledger) Floor() uint64 {
	// At the beginning and after a Restart, entries can have more places than there are events.
	return max(l.restartPosition, l.position-min(l.position, uint64(len(l.entries))))
}

// NextStart returns the smallest position at which a restarted history may begin. It is a multiple
// of the maximum number of kept events.
func (l *Ledger) NextStart() uint64 { return (l.position/l.maxEntries + 1) * l.maxEntries }

// Restart replaces the history by one that is the same on all ranks. Only its length, which is the
// given position, and its digest are known. position must be the NextStart of the rank with the
// longest history. So it is above every rank's old position, and the new history cannot be confused
// with an old one.
func (l *Ledger) Restart(position, digest uint64) {
	l.restartPosition = position
	l.position, l.digest = position, digest
	l.agreedPosition, l.agreedDigest = position, digest
	l.entries = nil
	// The only multiple of this stride below position is 0.
	l.stride = 1 << bits.Len64(position-1)
	l.checkpoints = []uint64{Empty}
}

// DigestAt returns the digest of all events before position, and whether the digest is known.
func (l *Ledger) DigestAt(position uint64) (uint64, bool) {
	switch {
	case position > l.position:
		return 0, false
	case position == l.position:
		return l.digest, true
	case position >= l.Floor():
		return l.entries[position&uint64(len(l.entries)-1)].digestBefore, true
	case position == l.agreedPosition:
		return l.agreedDigest, true
	case position%l.stride == 0:
		return l.checkpoints[position/l.stride], true
	}

	return 0, false
}

// EventAt returns the event at position without its call site, and whether the event is kept.
func (l *Ledger) EventAt(position uint64) (e event.Event, isKept bool) {
	if position >= l.position || position < l.Floor() {
		return event.Event{}, false
	}

	l.Load(position, &e)
	return e, true
}

// Load stores the number and the placement of an event in e, and returns the index of its call
// site. position must be between Floor and Position-1. Other fields of e stay unchanged.
func (l *Ledger) Load(position uint64, e *event.Event) (site uint32) {
	p := l.At(position)
	e.Number = position
	p.Load(e)
	return p.Site()
}

// At returns the packed event at position, which must be between Floor and Position-1. The result
// is valid until the next Append.
func (l *Ledger) At(position uint64) *event.Placement {
	return &l.entries[position&uint64(len(l.entries)-1)].Placement
}

// Agree records that all ranks have the same events before position, and that digest is the digest
// of these events. It returns false, and records nothing, if this ledger has fewer events or is
// known to have another digest. The agreed position never decreases.
func (l *Ledger) Agree(position, digest uint64) bool {
	if position > l.position {
		return false
	}

	ownDigest, isKnown := l.DigestAt(position)
	if isKnown && ownDigest != digest {
		return false
	}

	if position > l.agreedPosition {
		l.agreedPosition, l.agreedDigest = position, digest
	}

	return true
}

// Snapshot is the state of a ledger that ranks compare.
type Snapshot struct {
	// Position is the number of events, and Digest the digest of all events.
	Position, Digest uint64
	// Agreed is the agreed position, and AgreedDigest the digest of the events before it. They are
	// set by [Ledger.Agree] and [Ledger.Restart].
	Agreed, AgreedDigest uint64
	// Below Floor, only the digests at multiples of Stride and at Agreed are known.
	Floor, Stride uint64
}

// Snapshot returns the current state.
func (l *Ledger) Snapshot() Snapshot {
	return Snapshot{
		Position:     l.position,
		Digest:       l.digest,
		Agreed:       l.agreedPosition,
		AgreedDigest: l.agreedDigest,
		Floor:        l.Floor(),
		Stride:       l.stride,
	}
}
