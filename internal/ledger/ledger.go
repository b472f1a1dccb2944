package ledger

import (
	"math/bits"

	"symmem/event"
)

const (
	// DefaultKept is the default number of kept events, in 3 MiB.
	DefaultKept = 1 << 16

	// maintenanceInterval is the number of events between calls of maintain, and also the initial
	// stride and minimum length of Ledger.entries.
	maintenanceInterval = 64

	// maxCheckpoints limits the digests of older events to 8 KiB.
	maxCheckpoints = 1024
)

// Ledger is the history of one pool: events, numbered by their positions. A digest covers all
// events before a position. A Ledger keeps:
//
//	positions in [Floor, Position]   event and digest
//	multiples of Stride below Floor  digest
//	the agreed position              digest
//	other positions below Floor      nothing
type Ledger struct {
	position        uint64
	digest          uint64
	restartPosition uint64 // of the latest Restart; earlier events are unknown
	// Position p is at index p%len(entries). The length, a power of two, doubles until it reaches
	// maxEntries.
	entries    []entry
	maxEntries uint64

	stride      uint64   // power of two
	checkpoints []uint64 // digests at multiples of stride

	agreedPosition uint64
	agreedDigest   uint64
}

type entry struct {
	event.Placement
	digestBefore uint64
}

// New returns an empty ledger that keeps maxEntries events, rounded up to a power of two, or
// DefaultKept for 0.
func New(maxEntries int) *Ledger {
	if maxEntries <= 0 {
		maxEntries = DefaultKept
	}
	maxEntries = max(maxEntries, maintenanceInterval)
	return &Ledger{
		digest:       Empty,
		agreedDigest: Empty,
		maxEntries:   1 << bits.Len64(uint64(maxEntries-1)),
		stride:       maintenanceInterval,
	}
}

// Append appends the fields of e that ranks compare, and returns the event's position. site is an
// index in a [Sites] table. It allocates memory until the ledger keeps maxEntries events.
func (l *Ledger) Append(e *event.Event, site uint32) uint64 {
	p := event.PackPlacement(e, site)
	return l.append(p.StreamSegment, p.Offset, p.Size, p.Requested, p.SiteKind)
}

// AppendWithoutSite is like Append without a site. Its arguments fit into registers.
func (l *Ledger) AppendWithoutSite(
	kind event.Kind, stream uint32, segment int32, offset, size, requested int64,
) uint64 {
	return l.append(event.PackStreamSegment(stream, segment), offset, size, requested, uint64(kind))
}

func (l *Ledger) append(
	streamSegment uint64, offset, size, requested int64, siteKind uint64,
) uint64 {
	p := l.position
	if p%maintenanceInterval == 0 {
		l.maintain()
	}
	digestBefore := l.digest
	kind := event.Kind(siteKind)
	l.digest = extendDigest(digestBefore,
		mixPlace(streamSegment, offset), mixSizes(size, requested, kind))
	l.position = p + 1
	e := &l.entries[p&uint64(len(l.entries)-1)]
	e.StreamSegment, e.Offset, e.Size, e.Requested = streamSegment, offset, size, requested
	e.SiteKind, e.digestBefore = siteKind, digestBefore
	return p
}

// maintain grows entries and adds a checkpoint if necessary. Lengths of entries and strides are
// multiples of maintenanceInterval.
func (l *Ledger) maintain() {
	if n := uint64(len(l.entries)); l.position-l.restartPosition == n && n < l.maxEntries {
		newEntries := make([]entry, max(2*n, maintenanceInterval))
		copy(newEntries, l.entries)
		l.entries = newEntries
	}
	if l.position%l.stride != 0 {
		return
	}
	if len(l.checkpoints) == maxCheckpoints {
		l.dropEverySecondCheckpoint()
	}
	if l.position%l.stride == 0 {
		l.checkpoints = append(l.checkpoints, l.digest)
	}
}

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

// Floor returns the first position with a kept event.
func (l *Ledger) Floor() uint64 {
	return max(l.restartPosition, l.position-min(l.position, uint64(len(l.entries))))
}

// NextStart returns the smallest position at which a restarted history may begin.
func (l *Ledger) NextStart() uint64 { return (l.position/l.maxEntries + 1) * l.maxEntries }

// Restart begins a history that all ranks agree on, of which only length and digest are known.
// position is the NextStart of the rank with the longest history. Ranks reach it only by Restart,
// so it cannot differ from another history.
func (l *Ledger) Restart(position, digest uint64) {
	l.position, l.digest, l.restartPosition = position, digest, position
	l.agreedPosition, l.agreedDigest = position, digest
	l.entries = nil
	l.stride, l.checkpoints = 1<<bits.Len64(position-1), []uint64{Empty}
}

// DigestAt returns the digest of the first position events, if it is known.
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

// EventAt returns the event at position, if it is kept, without its call site.
func (l *Ledger) EventAt(position uint64) (e event.Event, known bool) {
	if position >= l.position || position < l.Floor() {
		return event.Event{}, false
	}
	l.Load(position, &e)
	return e, true
}

// Load stores an event in e and returns the index of its call site. position must be between Floor
// and Position-1. Other fields of e stay unchanged.
func (l *Ledger) Load(position uint64, e *event.Event) (site uint32) {
	p := l.At(position)
	e.Number = position
	p.Load(e)
	return p.Site()
}

// At returns the packed event at position, between Floor and Position-1, until the next Append.
func (l *Ledger) At(position uint64) *event.Placement {
	return &l.entries[position&uint64(len(l.entries)-1)].Placement
}

// Agree records that all ranks have the same events before position. It returns false if this
// ledger has a different digest. The agreed position never decreases.
func (l *Ledger) Agree(position, digest uint64) bool {
	if position > l.position {
		return false
	}
	if ownDigest, isKnown := l.DigestAt(position); isKnown && ownDigest != digest {
		return false
	}
	if position > l.agreedPosition {
		l.agreedPosition, l.agreedDigest = position, digest
	}
	return true
}

// Snapshot is a ledger's state for comparisons.
type Snapshot struct {
	Position, Digest uint64
	// Agreed and AgreedDigest are set by [Ledger.Agree].
	Agreed, AgreedDigest uint64
	// Below Floor, only the digests at multiples of Stride and at Agreed are known.
	Floor, Stride uint64
}

// Snapshot returns the current state.
func (l *Ledger) Snapshot() Snapshot {
	return Snapshot{
		Position: l.position, Digest: l.digest,
		Agreed: l.agreedPosition, AgreedDigest: l.agreedDigest,
		Floor: l.Floor(), Stride: l.stride,
	}
}
