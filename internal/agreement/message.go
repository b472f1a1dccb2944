package agreement

import (
	"encoding/binary"
	"fmt"
)

type phase uint64

const (
	phaseVote phase = iota + 1
	phaseProbe
	phaseEvents
	phaseDone
)

// message is one rank's decoded payload in a round.
type message struct {
	phase phase
	round uint64
	// In phaseVote, value holds the mode and the tag, and note holds the call's site. In
	// phaseEvents, value holds the answer for a position, and note the digests of the requests from
	// there on.
	value, call, note []byte
	ledger, position  uint64
	flags             uint64 // in phaseVote: Config.Flags

	votes   []vote   // in phaseVote, by ledger id
	answers []answer // in phaseProbe
}

func (m *message) encode() []byte {
	b := appendWords(nil, wireVersion, uint64(m.phase), m.round, m.ledger, m.position, m.flags)
	for _, part := range [][]byte{m.value, m.call, m.note} {
		b = appendBytes(b, part)
	}
	// Append cannot fail, because both types have fixed sizes.
	b, _ = binary.Append(b, binary.LittleEndian, m.votes)
	b, _ = binary.Append(b, binary.LittleEndian, m.answers)
	return b
}

func decode(b []byte) (*message, error) {
	r := &reader{b: b}
	if v := r.u64("version"); r.err == nil && v != wireVersion {
		return nil, protocolError("decoding version %d", v)
	}
	m := &message{phase: phase(r.u64("phase")), round: r.u64("round")}
	m.ledger, m.position = r.u64("ledger"), r.u64("position")
	m.flags = r.u64("flags")
	m.value, m.call = r.bytes(maxValue, "value"), r.bytes(maxValue, "call")
	m.note = r.bytes(maxNote, "note")
	switch m.phase {
	case phaseVote:
		m.votes = readList[vote](r, MaxLedgers, "votes")
		for i, v := range m.votes {
			if !v.valid() || i > 0 && v.ID <= m.votes[i-1].ID {
				r.fail("vote")
			}
		}
	case phaseProbe:
		m.answers = readList[answer](r, MaxLedgers*maxProbes, "answers")
	case phaseEvents:
	default:
		r.fail("phase")
	}
	if len(r.b) > 0 {
		r.fail("rest")
	}
	return m, r.err
}

// Summary combines the payloads of a round.
type Summary struct {
	phase            phase
	round            uint64
	ledger, position uint64
	ranks, absent    []int

	flags            uint64        // in phaseVote
	tags, ids, calls variants      // in phaseVote
	votes            []tally       // in phaseVote
	results          []probeResult // in phaseProbe
	events           variants      // in phaseEvents
}

// Merge combines the payloads of a round, which are indexed by rank and nil for ranks that did not
// take part. Errors wrap [ErrProtocol].
func Merge(payloads [][]byte) (*Summary, error) {
	s := &Summary{}
	for rank, p := range payloads {
		if p == nil {
			s.absent = append(s.absent, rank)
			continue
		}
		m, err := decode(p)
		if err == nil {
			err = s.add(rank, m)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the payload of rank %d: %w", rank, err)
		}
	}
	if len(s.ranks) == 0 {
		return nil, protocolError("no rank sent a payload")
	}
	return s, nil
}

func (s *Summary) add(rank int, m *message) error {
	if len(s.ranks) == 0 {
		s.phase, s.round, s.ledger, s.position = m.phase, m.round, m.ledger, m.position
	}
	if m.phase != s.phase || m.round != s.round || m.ledger != s.ledger || m.position != s.position {
		return protocolError("payloads of rounds %d and %d are mixed", s.round, m.round)
	}
	first := len(s.ranks) == 0
	s.ranks = append(s.ranks, rank)
	switch s.phase {
	case phaseVote:
		s.addVotes(rank, m, first)
	case phaseProbe:
		return s.addAnswers(m, first)
	case phaseEvents:
		s.events.add(rank, m.value, m.note)
	case phaseDone:
	}
	return nil
}

// addVotes drops all votes if ranks have different ledgers.
func (s *Summary) addVotes(rank int, m *message, first bool) {
	s.flags |= m.flags
	s.tags.add(rank, m.value, nil)
	s.calls.add(rank, m.call, m.note)
	var ids []byte
	for _, v := range m.votes {
		ids = appendWords(ids, v.ID)
	}
	s.ids.add(rank, ids, nil)
	if !s.ids.equal() {
		s.votes = nil
		return
	}
	for i, v := range m.votes {
		if first {
			s.votes = append(s.votes, newTally(v))
		}
		s.votes[i].add(rank, v)
	}
}

func (s *Summary) addAnswers(m *message, first bool) error {
	if first {
		s.results = make([]probeResult, len(m.answers))
		for i, a := range m.answers {
			s.results[i].answer = a
		}
	}
	if len(m.answers) != len(s.results) {
		return protocolError("ranks sent different numbers of answers, %d and %d",
			len(s.results), len(m.answers))
	}
	for i, a := range m.answers {
		if !a.samePosition(s.results[i].answer) {
			return protocolError("ranks sent answers for different positions")
		}
		s.results[i].add(a)
	}
	return nil
}
