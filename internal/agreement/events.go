package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
	"symmem/internal/ledger"
)

// In phaseEvents, the last phase of an agreement, each rank sends its side of the first difference
// between the ranks' histories of a pool: the event that differs. A rank that no longer keeps this
// event sends a digest (hash) of its history up to and including the event. If the ranks know the
// difference only as a range of positions, they send digests up to the end of the range.

// maxComparedEvents is the number of events whose requests classify compares. A request is an event
// without the place that the pool has chosen.
const maxComparedEvents = 9

// maxDetailBytes is the maximum size of message.detail, which holds request digests or a call site.
const maxDetailBytes = max(8*maxComparedEvents, event.MaxSiteBytes)

// The kinds of a side. An encoded side is its kind and the data in the comment.
const (
	sideEvent   byte = iota + 1 // an event and its call site
	sideEnd                     // the length of a history that ends before the difference
	sideDigest                  // a position and the digest of the events before it
	sideNotKept                 // no data, because the rank keeps neither an event nor a digest
)

// startEventsPhase returns this rank's payload for phaseEvents as results of Machine.Step.
func (m *Machine) startEventsPhase() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	search := m.searches[0] // the range of positions of the first difference
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

// encodeEventSide encodes the event at a position or, if the rank no longer keeps it, the digest of
// all events up to and including it.
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
	isAtFirst := s.position == search.first // otherwise, after the last; see startEventsPhase
	if s.ledger != search.id || isAtFirst != isPositionKnown {
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
	// Equal sides are possible if the rank that differs is absent.
	areAllPresent := len(m.absent) == 0
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

	if len(c.detail)%8 != 0 {
		return v, protocolError("the requests' digests have %d bytes, which is not a multiple of 8",
			len(c.detail))
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
	case kind == sideEnd && len(body) == 8:
		end := binary.LittleEndian.Uint64(body)
		v.Text = fmt.Sprintf("no event: history ends at %d", end)
	case kind == sideDigest && len(body) == 2*8:
		position := binary.LittleEndian.Uint64(body)
		digest := binary.LittleEndian.Uint64(body[8:])
		v.Text = fmt.Sprintf("digest %016x at %d", digest, position)
	case kind == sideNotKept && len(body) == 0:
		v.Text = "events that are no longer kept"
	default:
		return v, protocolError("the side of a rank has an unknown kind (%d) or a wrong size", kind)
	}

	return v, nil
}
