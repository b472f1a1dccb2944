package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
	"symmem/internal/ledger"
)

// In phaseEvents, the last phase of an agreement, each rank sends its side of the first difference
// between the ranks' histories of a pool. Suppose that the histories of all ranks have the same
// first 5 events, and differ at position 5. Then each rank sends:
//
//   - its event at position 5
//   - the digests (hashes) of the requests of this event and of the next 8. A request is an event
//     without the place that the pool has chosen. With them, classify guesses, for example, that
//     rank 1 has an additional event.
//
// A rank keeps only its latest events. If it no longer keeps the event at position 5, it sends the
// digest of its first 6 events. If the ranks know only that the first difference is between
// positions 5 and 20, each sends the digest of its first 21 events.

// maxComparedEvents is the number of events whose requests classify compares.
const maxComparedEvents = 9

// maxDetailBytes is the maximum size of message.detail, which holds request digests or a call site.
const maxDetailBytes = max(8*maxComparedEvents, event.MaxSiteBytes)

// The first byte of an encoded side, which is its kind. The comments describe the other bytes.
const (
	sideEvent   byte = iota + 1 // the event and its call site
	sideEnd                     // the length of a history that is too short
	sideDigest                  // a position and the digest of the events before the position
	sideNotKept                 // none: the rank keeps neither the event nor a digest
)

// startEventsPhase returns this rank's payload for phaseEvents. The other results are those of
// Machine.Step.
func (m *Machine) startEventsPhase() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	search := m.searches[0] // the range of positions of the first difference
	source := m.history(search.id)
	msg := message{phase: m.phase, round: m.round, ledger: search.id, position: search.first}
	if search.first == search.last {
		msg.value = encodeEventSide(source, search.first)
		msg.detail = requestDigestsFrom(source, search.first)
	} else {
		msg.position = search.last + 1
		msg.value = encodeDigestSide(source, search.last+1)
	}

	return msg.encode(), nil, nil // the agreement has no outcome yet
}

// encodeEventSide encodes the event at a position. If the event is no longer kept, it encodes the
// digest of all events up to this one.
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

// requestDigestsFrom encodes the digests of the requests of up to maxComparedEvents events, from a
// position on.
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

// handleEvents ends the agreement: its outcome is a divergence with the sides of all ranks. The
// results are those of Machine.Step.
func (m *Machine) handleEvents(s *Summary) ([]byte, *Outcome, error) {
	search := m.searches[0]
	isPositionKnown := search.first == search.last
	// startEventsPhase sends the first position if it is known, and otherwise a later one.
	isForFirst := s.position == search.first
	if s.ledger != search.id || isForFirst != isPositionKnown {
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
	areAllPresent := len(m.absent) == 0 // otherwise, an absent rank may have the different side
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

// decodeSide decodes the side that the ranks of c have sent. Its errors wrap ErrProtocol.
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
