package agreement

import (
	"encoding/binary"
	"fmt"

	"symmem/event"
	"symmem/internal/ledger"
)

// maxFollowing is the number of events that are compared to classify a difference.
const maxFollowing = 9

// maxNote is the maximum size in bytes of a note: the digests of some requests, or the site of a
// call.
const maxNote = max(8*maxFollowing, event.MaxSiteBytes)

// The kinds of answers in phaseEvents. The first byte of an answer is its kind.
const (
	answerEvent     byte = iota + 1 // event at the position, with its site
	answerEnd                       // the history ends at or before the position
	answerDigest                    // the digest at the position; the event is no longer kept
	answerForgotten                 // neither event nor digest is kept
)

// askEvents starts phaseEvents, in which each rank sends its event at the first difference. If only
// a range of positions is known, each rank sends its digest at the end of the range instead.
func (m *Machine) askEvents() ([]byte, *Outcome, error) {
	m.phase = phaseEvents
	span := m.undecided[0]
	source := m.history(span.id)
	msg := message{phase: m.phase, round: m.round, ledger: span.id, position: span.first}
	if span.first == span.last {
		msg.value, msg.note = eventAnswer(source, span.first), followingRequests(source, span.first)
	} else {
		msg.position = span.last + 1
		msg.value = digestAnswer(source, span.last+1)
	}
	return msg.encode(), nil, nil
}

func eventAnswer(source snapshotSource, position uint64) []byte {
	if e, ok := source.EventAt(position); ok {
		return event.Append([]byte{answerEvent}, &e)
	}
	return digestAnswer(source, position+1)
}

func digestAnswer(source snapshotSource, position uint64) []byte {
	if source.end < position {
		return appendWords([]byte{answerEnd}, source.end)
	}
	if digest, ok := source.DigestAt(position); ok {
		return appendWords([]byte{answerDigest}, position, digest)
	}
	return []byte{answerForgotten}
}

func followingRequests(source snapshotSource, position uint64) []byte {
	var out []byte
	for i := range uint64(maxFollowing) {
		e, ok := source.EventAt(position + i)
		if !ok {
			break
		}
		out = appendWords(out, ledger.RequestDigest(e))
	}
	return out
}

func (m *Machine) afterEvents(s *Summary) ([]byte, *Outcome, error) {
	span := m.undecided[0]
	exact := span.first == span.last
	if s.ledger != span.id || exact != (s.position == span.first) {
		return nil, nil, protocolError("unexpected events of position %d", s.position)
	}
	d := m.newDivergence(KindPlacement, span.id)
	d.Position, d.Last = span.first, span.last
	for _, w := range s.events.list {
		v, err := decodeEventAnswer(w)
		if err != nil {
			return nil, nil, err
		}
		d.Variants = append(d.Variants, v)
	}
	d.Others = s.events.others
	if s.events.equal() && len(m.absent) == 0 {
		return nil, nil, protocolError("ranks with different digests have the same event at %d",
			span.first)
	}
	d.setDeviant(len(s.ranks))
	if exact {
		d.Difference = classify(d, s.events)
	}
	return nil, &Outcome{Divergence: d, Absent: m.absent}, nil
}

func decodeEventAnswer(w variant) (Variant, error) {
	v := Variant{Ranks: w.ranks}
	if len(w.value) == 0 {
		return v, protocolError("decoding an empty answer")
	}
	if len(w.note)%8 != 0 {
		return v, protocolError("decoding a list of requests of %d bytes", len(w.note))
	}
	body := w.value[1:]
	switch kind := w.value[0]; {
	case kind == answerEvent:
		e, err := event.Decode(body)
		if err != nil {
			return v, protocolError("%w", err)
		}
		v.Event, v.HasEvent, v.Site, v.What = e, true, e.Site, e.String()
	case kind == answerEnd && len(body) == 8:
		v.What = fmt.Sprintf("no event: history ends at %d", binary.LittleEndian.Uint64(body))
	case kind == answerDigest && len(body) == 16:
		v.What = fmt.Sprintf("digest %016x at %d",
			binary.LittleEndian.Uint64(body[8:]), binary.LittleEndian.Uint64(body))
	case kind == answerForgotten && len(body) == 0:
		v.What = "events that are no longer kept"
	default:
		return v, protocolError("decoding an answer of kind %d", kind)
	}
	return v, nil
}
