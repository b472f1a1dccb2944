package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
	"symmem/internal/ledger"
)

// maxComparedEvents is the number of events from a difference whose requests classify compares.
const maxComparedEvents = 9

// maxDetailBytes is the maximum size of a detail: request digests or a call site.
const maxDetailBytes = max(8*maxComparedEvents, event.MaxSiteBytes)

// The first byte of an answer in phaseEvents.
const (
	answerEvent   byte = iota + 1 // followed by the event and its call site
	answerEnd                     // followed by the length of the shorter history
	answerDigest                  // followed by a position and the digest of the events before it
	answerNotKept                 // followed by nothing: neither event nor digest is kept
)

// startEventsPhase returns this rank's payload for phaseEvents: its event at the first difference.
// If the position of the difference is not known exactly, the payload contains the digest after
// the last possible position instead.
func (m *Machine) startEventsPhase() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	search := m.searches[0]
	source := m.history(search.id)
	msg := message{phase: m.phase, round: m.round, ledger: search.id, position: search.first}
	if search.first == search.last {
		msg.value = encodeEventAnswer(source, search.first)
		msg.detail = requestDigestsFrom(source, search.first)
	} else {
		msg.position = search.last + 1
		msg.value = encodeDigestAnswer(source, search.last+1)
	}
	return msg.encode(), nil, nil
}

// encodeEventAnswer encodes the event at a position or, if it is no longer kept, the digest after
// it.
func encodeEventAnswer(source snapshotSource, position uint64) []byte {
	if e, ok := source.EventAt(position); ok {
		return event.Append([]byte{answerEvent}, &e)
	}
	return encodeDigestAnswer(source, position+1)
}

// encodeDigestAnswer encodes the digest of the events before a position.
func encodeDigestAnswer(source snapshotSource, position uint64) []byte {
	if source.end < position {
		return appendUint64s([]byte{answerEnd}, source.end)
	}
	if digest, ok := source.DigestAt(position); ok {
		return appendUint64s([]byte{answerDigest}, position, digest)
	}
	return []byte{answerNotKept}
}

// requestDigestsFrom encodes the digests of the requests of at most maxComparedEvents events from
// a position.
func requestDigestsFrom(source snapshotSource, position uint64) []byte {
	var out []byte
	for i := range uint64(maxComparedEvents) {
		e, ok := source.EventAt(position + i)
		if !ok {
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
	askedForFirst := s.position == search.first
	if s.ledger != search.id || askedForFirst != isPositionKnown {
		return nil, nil, protocolError("the ranks sent events at the wrong position, %d", s.position)
	}
	d := m.newDivergence(KindPlacement, search.id)
	d.Position, d.Last = search.first, search.last
	for _, c := range s.events.list {
		v, err := decodeAnswer(c)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants, v)
	}
	d.OtherRanks = s.events.otherRanks
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

// decodeAnswer decodes an answer that one or more ranks sent.
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
		v.Event, v.HasEvent = e, true
		v.Site, v.Text = e.Site, e.String()
	case kind == answerEnd && len(body) == 8:
		v.Text = fmt.Sprintf("no event: history ends at %d", binary.LittleEndian.Uint64(body))
	case kind == answerDigest && len(body) == 16:
		v.Text = fmt.Sprintf("digest %016x at %d",
			binary.LittleEndian.Uint64(body[8:]), binary.LittleEndian.Uint64(body))
	case kind == answerNotKept && len(body) == 0:
		v.Text = "events that are no longer kept"
	default:
		return v, protocolError("the answer has an unknown kind (%d) or a wrong size", kind)
	}
	return v, nil
}
