package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
	"symmem/internal/ledger"
)

// In phaseEvents, the last phase of an agreement, the ranks know where their histories of a pool
// differ first. Each rank sends its side of the difference: its event at this position, or a digest
// (hash) of its history through this event if the rank no longer keeps the event. If the ranks know
// only a range of positions, they send digests of their histories through the end of the range.

const (
	// maxComparedEvents is the number of events whose requests are compared: the differing event and
	// 8 later ones. A request is an event without the place that the pool has chosen.
	maxComparedEvents = 9

	// maxDetailBytes limits message.detail, which holds request digests or a call site.
	maxDetailBytes = max(uint64Bytes*maxComparedEvents, event.MaxSiteBytes)
)

// The kinds of a side. In an encoded side, the data in the comment follows the kind.
const (
	sideEvent   byte = iota + 1 // an event and its call site
	sideEnd                     // the length of a history that ends before the difference
	sideDigest                  // a position and the digest of the events before it
	sideNotKept                 // no data, because the rank keeps neither an event nor a digest
)

// startEventsPhase returns this rank's payload for phaseEvents as results of Machine.Step.
func (m *Machine) startEventsPhase() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	search := m.searches[0] // with the first difference
	source := m.history(search.id)
	msg := message{phase: m.phase, round: m.round, ledger: search.id}
	isPositionKnown := search.first == search.last
	if isPositionKnown {
		msg.position = search.first
		msg.value = encodeEventSide(source, search.first)
		msg.detail = requestDigestsFrom(source, search.first)
	} else {
		end := search.last + 1
		msg.position = end
		msg.value = encodeDigestSide(source, end)
	}

	return msg.encode(), nil, nil // no outcome yet
}

// encodeEventSide encodes the event at a position or, if the rank no longer keeps the event, the
// digest of all events through the position.
func encodeEventSide(source snapshotSource, position uint64) []byte {
	if e, isKept := source.EventAt(position); isKept {
		return event.Append([]byte{sideEvent}, &e)
	}

	return encodeDigestSide(source, position+1)
}

// encodeDigestSide encodes the digest of the events before a position.
func encodeDigestSide(source snapshotSource, position uint64) []byte {
	if source.end < position { // the history is too short
		return appendUint64s([]byte{sideEnd}, source.end)
	}

	if digest, isKept := source.DigestAt(position); isKept {
		return appendUint64s([]byte{sideDigest}, position, digest)
	}

	return []byte{sideNotKept}
}

// requestDigestsFrom encodes the request digests of up to maxComparedEvents events.
func requestDigestsFrom(source snapshotSource, position uint64) []byte {
	var out []byte
	for i := range uint64(maxComparedEvents) {
		e, isKept := source.EventAt(position + i)
		if !isKept {
			break
		}

		out = appendUint64s(out, ledger.RequestDigest(e))
	}

	return out
}

// handleEvents ends the agreement with a divergence that has the sides of all ranks. It returns the
// results of Machine.Step.
func (m *Machine) handleEvents(s *Summary) ([]byte, *Outcome, error) {
	search := m.searches[0]
	isPositionKnown := search.first == search.last
	wantPosition := search.last + 1 // of the digests
	if isPositionKnown {
		wantPosition = search.first
	}

	if s.ledger != search.id || s.position != wantPosition {
		return nil, nil, protocolError("the ranks sent events at the wrong position, %d", s.position)
	}

	d := m.newDivergence(KindPlacement, search.id)
	d.Position = search.first
	d.Last = search.last
	for _, c := range s.events.list {
		v, err := decodeSide(c)
		if err != nil {
			return nil, nil, err
		}

		d.Variants = append(d.Variants, v)
	}

	d.OtherRanks = s.events.otherRanks
	areAllPresent := len(m.absent) == 0 // otherwise, the rank that differs may be absent
	if s.events.areEqual() && areAllPresent {
		return nil, nil, protocolError("ranks with different digests sent the same event, number %d",
			search.first)
	}

	d.setDeviant(len(s.ranks))
	if isPositionKnown {
		d.Difference = classify(d, s.events)
	}

	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

// decodeSide decodes the side that the ranks of c have sent.
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
