package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
	"symmem/internal/ledger"
)

// maxComparedEvents is the number of events whose requests classify compares: the first differing
// event and the next 8.
const maxComparedEvents = 9

// maxDetailBytes is the maximum size of message.detail, which holds request digests or a call site.
const maxDetailBytes = max(8*maxComparedEvents, event.MaxSiteBytes)

// The first byte of an answer in phaseEvents. It gives the kind of the bytes that follow.
const (
	answerEvent   byte = iota + 1 // the event and its call site
	answerEnd                     // the length of a history that is too short
	answerDigest                  // a position and the digest of the events before the position
	answerNotKept                 // nothing: the rank keeps neither the event nor a digest
)

// startEventsPhase returns this rank's payload for phaseEvents: its event at the first difference.
// If only a range of positions is known for the difference, the payload contains the digest after
// the last position instead.
func (m *Machine) startEventsPhase() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	search := m.searches[0] // the range of positions of the first difference
	source := m.history(search.id)
	msg := message{phase: m.phase, round: m.round, ledger: search.id, position: search.first}
	if search.first == search.last {
		msg.value = encodeEventAnswer(source, search.first)
		msg.detail = requestDigestsFrom(source, search.first)
	} else {
		msg.position = search.last + 1
		msg.value = encodeDigestAnswer(source, search.last+1)
	}

	return msg.encode(), nil, nil // the agreement has no outcome yet
}

// encodeEventAnswer encodes the event at a position. If the event is no longer kept, it encodes the
// digest after the event.
func encodeEventAnswer(source snapshotSource, position uint64) []byte {
	if e, ok := source.EventAt(position); ok {
		return event.Append([]byte{answerEvent}, &e)
	}

	return encodeDigestAnswer(source, position+1)
}

// encodeDigestAnswer encodes the digest of the events before a position.
func encodeDigestAnswer(source snapshotSource, position uint64) []byte {
	if source.end < position { // this rank had fewer events when it voted
		return appendUint64s([]byte{answerEnd}, source.end)
	}

	if digest, ok := source.DigestAt(position); ok {
		return appendUint64s([]byte{answerDigest}, position, digest)
	}

	return []byte{answerNotKept}
}

// requestDigestsFrom encodes digests of the requests of events from a position on, for at most
// maxComparedEvents events. A request is an event without the place that the pool has chosen.
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

// handleEvents ends the agreement with a divergence in a pool's history. The results are those of
// Machine.Step.
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
		v, err := decodeAnswer(c)
		if err != nil {
			return nil, nil, err
		}

		d.Variants = append(d.Variants, v)
	}

	d.OtherRanks = s.events.otherRanks
	// If ranks are absent, the event of one of them can be the one that differs.
	if s.events.areEqual() && len(m.absent) == 0 {
		return nil, nil, protocolError("ranks with different digests sent the same event, number %d",
			search.first)
	}

	d.setDeviant(len(s.ranks))
	if isPositionKnown {
		d.Difference = classify(d, s.events)
	}

	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

// decodeAnswer decodes an answer of encodeEventAnswer or encodeDigestAnswer, which the ranks of c
// have sent. Its errors wrap ErrProtocol.
func decodeAnswer(c contribution) (Variant, error) {
	v := Variant{Ranks: c.ranks}
	if len(c.value) == 0 {
		return v, protocolError("the answer is empty")
	}

	if len(c.detail)%8 != 0 {
		return v, protocolError("the requests' digests have %d bytes, which is not a multiple of 8",
			len(c.detail))
	}

	body := c.value[1:]
	switch kind := c.value[0]; {
	case kind == answerEvent:
		e, err := event.Decode(body)
		if err != nil {
			return v, protocolError("%w", err)
		}

		v.HasEvent = true
		v.Event = e
		v.Site = e.Site
		v.Text = e.String()
	case kind == answerEnd && len(body) == 8:
		end := binary.LittleEndian.Uint64(body)
		v.Text = fmt.Sprintf("no event: history ends at %d", end)
	case kind == answerDigest && len(body) == 16:
		position := binary.LittleEndian.Uint64(body)
		digest := binary.LittleEndian.Uint64(body[8:])
		v.Text = fmt.Sprintf("digest %016x at %d", digest, position)
	case kind == answerNotKept && len(body) == 0:
		v.Text = "events that are no longer kept"
	default:
		return v, protocolError("the answer has an unknown kind (%d) or a wrong size", kind)
	}

	return v, nil
}
