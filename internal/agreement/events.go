package agreement

import (
	"encoding/binary"
	"fmt"
	"slices"

	"symmem/event"
	"symmem/internal/ledger"
)

const (
	maxComparedRequests = 9 // of the first different event and 8 later ones
	maxSiteOrDigests    = max(uint64Bytes*maxComparedRequests, event.MaxSiteBytes)
)

// In phaseEvents, each rank sends its side of the difference: one of these bytes, followed by data.
const (
	sideEvent   byte = iota + 1 // an event and its call site
	sideEnd                     // the length of the history, which ends before the difference
	sideDigest                  // a position, and the digest of the events before it
	sideNotKept                 // nothing; the rank keeps neither the event nor the digest
)

// startEventsPhase returns results of Machine.Step: this rank's payload for phaseEvents.
func (m *Machine) startEventsPhase() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	search := m.searches[0] // the first ledger that differs
	source := m.history(search.id)
	msg := message{
		phase: m.phase, round: m.round, ledger: search.id, position: search.sidePosition(),
	}
	if search.isFound() {
		msg.tagOrSide = encodeEventSide(source, msg.position)
		msg.siteOrDigests = requestDigestsFrom(source, msg.position)
	} else {
		msg.tagOrSide = encodeDigestSide(source, msg.position)
	}

	return msg.encode(), nil, nil // no outcome yet
}

// encodeEventSide encodes the event at a position. If the rank no longer keeps the event, it
// encodes the digest of the history through the event.
func encodeEventSide(source snapshotSource, position uint64) []byte {
	if e, isKept := source.EventAt(position); isKept {
		return event.Append([]byte{sideEvent}, &e)
	}

	return encodeDigestSide(source, position+1)
}

// encodeDigestSide encodes the digest of the events before a position.
func encodeDigestSide(source snapshotSource, position uint64) []byte {
	if source.end < position {
		return appendUint64s([]byte{sideEnd}, source.end)
	}

	if digest, isKept := source.DigestAt(position); isKept {
		return appendUint64s([]byte{sideDigest}, position, digest)
	}

	return []byte{sideNotKept}
}

// requestDigestsFrom encodes the digests of the requests for the event at a position and for later
// events. A request is an event without the place that the pool has chosen.
func requestDigestsFrom(source snapshotSource, position uint64) []byte {
	var out []byte
	for i := range uint64(maxComparedRequests) {
		e, isKept := source.EventAt(position + i)
		if !isKept {
			break
		}

		out = appendUint64s(out, ledger.RequestDigest(e))
	}

	return out
}

// handleEvents returns results of Machine.Step: a divergence with the sides of all ranks.
func (m *Machine) handleEvents(s *Summary) ([]byte, *Outcome, error) {
	search := m.searches[0]
	if s.ledger != search.id || s.position != search.sidePosition() {
		return nil, nil, protocolError("the ranks sent events at the wrong position, %d", s.position)
	}

	d := m.newDivergence(KindPlacement, search.id)
	d.Position = search.first
	d.Last = search.last
	for _, c := range s.sides.list {
		v, err := decodeSide(c)
		if err != nil {
			return nil, nil, err
		}

		d.Variants = append(d.Variants, v)
	}

	d.OtherRanks = s.sides.otherRanks
	hasAllRanks := len(m.absent) == 0
	if hasAllRanks && s.sides.areEqual() {
		return nil, nil, protocolError("ranks with different digests sent the same event, number %d",
			search.first)
	}

	d.setDeviant(len(s.ranks))
	if search.isFound() {
		d.Difference = classify(d, s.sides)
	}

	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

func decodeSide(c contribution) (Variant, error) {
	v := Variant{Ranks: c.ranks}
	if len(c.value) == 0 {
		return v, protocolError("the side of a rank is empty")
	}

	if len(c.detail)%uint64Bytes != 0 {
		return v, protocolError("the requests' digests have %d bytes, which is not a multiple of %d",
			len(c.detail), uint64Bytes)
	}

	kind, body := c.value[0], c.value[1:]
	switch {
	case kind == sideEvent:
		e, err := event.Decode(body)
		if err != nil {
			return v, protocolError("%w", err)
		}

		v.HasEvent = true
		v.Event = e
		v.Site = e.Site
		v.Text = e.String()
	case kind == sideEnd && len(body) == uint64Bytes:
		end := binary.LittleEndian.Uint64(body)
		v.Text = fmt.Sprintf("no event: history ends at %d", end)
	case kind == sideDigest && len(body) == 2*uint64Bytes:
		position := binary.LittleEndian.Uint64(body)
		digest := binary.LittleEndian.Uint64(body[uint64Bytes:])
		v.Text = fmt.Sprintf("digest %016x at %d", digest, position)
	case kind == sideNotKept && len(body) == 0:
		v.Text = "events that are no longer kept"
	default:
		return v, protocolError("the side of a rank has an unknown kind (%d) or a wrong size", kind)
	}

	return v, nil
}

// OwnVariant returns this rank's Variant of a divergence that other ranks have found at positions
// first to last.
func (c Config) OwnVariant(kind Kind, id, first, last uint64) (Variant, error) {
	v := Variant{Ranks: []int{c.Rank}}
	var err error
	switch kind {
	case KindTag:
		v.Text = c.Tag
	case KindLedgers:
		var ids []byte
		for _, l := range c.Ledgers {
			ids = appendUint64s(ids, l.ID)
		}

		v.Text, err = c.Names.describePools(ids)
	case KindCollective:
		v.Site = string(c.siteOfCall())
		v.Text, err = c.Names.describeCall(encodeOptionalCall(c.Call))
	case KindPlacement:
		i := slices.IndexFunc(c.Ledgers, func(l Ledger) bool { return l.ID == id })
		if i < 0 {
			return v, fmt.Errorf("unknown ledger %d", id)
		}

		source := c.Ledgers[i].Source
		history := snapshotSource{Source: source, end: source.Snapshot().Position}
		side := encodeEventSide(history, first)
		if last > first {
			side = encodeDigestSide(history, last+1)
		}

		v, err = decodeSide(contribution{value: side, ranks: v.Ranks})
	default:
		err = fmt.Errorf("no own side of kind %v", kind)
	}

	return v, err
}
