package agreement

import (
	"encoding/binary"
	"fmt"
)

// phase is the step of an agreement. A ledger is the history of events of one pool.
type phase uint64

const (
	phaseVote   phase = iota + 1 // ranks compare the states of all their ledgers
	phaseProbe                   // ranks compare digests to find the first difference of a ledger
	phaseEvents                  // ranks compare the event at the first difference
	phaseDone                    // no messages are sent
)

// message is one rank's payload in a round. Fields of other phases are empty.
type message struct {
	phase phase
	round uint64 // from 0
	// value holds the mode and the tag of the operation in phaseVote. In phaseEvents, it holds the
	// answer for a position.
	value []byte
	// call is the encoded Config.Call, in phaseVote.
	call []byte
	// detail holds the call site of the call in phaseVote. In phaseEvents, it holds the digests of
	// the requests from the position on.
	detail           []byte
	ledger, position uint64 // in phaseEvents: ledger id, and position of an event in the ledger
	flags            uint64 // in phaseVote: Config.Flags

	votes   []vote   // in phaseVote, sorted by ledger id
	answers []answer // in phaseProbe
}

// encode encodes m in the order in which decodeMessage reads the fields.
func (m *message) encode() []byte {
	b := appendUint64s(nil, wireVersion, uint64(m.phase), m.round, m.ledger, m.position, m.flags)
	for _, part := range [][]byte{m.value, m.call, m.detail} {
		b = appendWithLength(b, part)
	}

	// Votes and answers have fixed sizes, so binary.Append cannot fail.
	b, _ = binary.Append(b, binary.LittleEndian, m.votes)
	b, _ = binary.Append(b, binary.LittleEndian, m.answers)
	return b
}

// decodeMessage decodes the result of encode. Errors wrap ErrProtocol.
func decodeMessage(b []byte) (*message, error) {
	r := &reader{rest: b} // after the first error, its methods return zero values
	version := r.readUint64("version")
	if r.err == nil && version != wireVersion {
		return nil, protocolError("the peer uses version %d of the encoding", version)
	}

	m := &message{}
	m.phase = phase(r.readUint64("phase"))
	m.round = r.readUint64("round")
	m.ledger = r.readUint64("ledger")
	m.position = r.readUint64("position")
	m.flags = r.readUint64("flags")
	m.value = r.readBytes(maxValue, "value")
	m.call = r.readBytes(maxCall, "call")
	m.detail = r.readBytes(maxDetailBytes, "detail")
	switch m.phase {
	case phaseVote:
		m.votes = readList[vote](r, MaxLedgers, "votes")
		for i, v := range m.votes {
			isSorted := i == 0 || v.ID > m.votes[i-1].ID
			if !v.isValid() || !isSorted {
				r.fail("vote")
			}
		}
	case phaseProbe:
		m.answers = readList[answer](r, MaxLedgers*maxProbes, "answers")
	case phaseEvents: // has neither votes nor answers
	default:
		r.fail("phase")
	}

	if len(r.rest) > 0 {
		r.fail("trailing bytes")
	}

	return m, r.err
}

// Summary combines the payloads of all ranks in a round. A field of type contributions holds the
// different values that ranks sent, and the ranks that sent each.
type Summary struct {
	phase            phase
	round            uint64
	ledger, position uint64 // in phaseEvents; see message
	ranks, absent    []int  // group ranks with and without a payload

	flags   uint64           // in phaseVote: all flags that ranks have set
	tags    contributions    // in phaseVote: modes and tags
	ids     contributions    // in phaseVote: lists of ledger ids
	calls   contributions    // in phaseVote: calls, with their call sites as details
	votes   []combinedVote   // in phaseVote: by ledger; empty if the lists of ledger ids differ
	results []positionResult // in phaseProbe: by position
	events  contributions    // in phaseEvents: answers for the position
}

// Merge combines the payloads of a round, indexed by rank. The payloads of absent ranks are nil.
// It returns an error that wraps [ErrProtocol] if a payload is invalid, if payloads do not belong
// to the same round, or if all ranks are absent.
func Merge(payloads [][]byte) (*Summary, error) {
	s := &Summary{}
	for rank, p := range payloads {
		if p == nil {
			s.absent = append(s.absent, rank)
			continue
		}

		m, err := decodeMessage(p)
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

// add adds the payload of a rank. The first payload determines the step to which the others must
// belong.
func (s *Summary) add(rank int, m *message) error {
	isFirst := len(s.ranks) == 0
	if isFirst {
		s.phase, s.round, s.ledger, s.position = m.phase, m.round, m.ledger, m.position
	}

	isSameRound := m.phase == s.phase && m.round == s.round
	isSamePosition := m.ledger == s.ledger && m.position == s.position
	if !isSameRound || !isSamePosition {
		return protocolError("the payloads of rounds %d and %d are for different steps",
			s.round, m.round)
	}

	s.ranks = append(s.ranks, rank)
	switch s.phase {
	case phaseVote:
		s.addVotes(rank, m, isFirst)
	case phaseProbe:
		return s.addAnswers(m, isFirst)
	case phaseEvents:
		s.events.add(rank, m.value, m.detail)
	case phaseDone: // no rank sends a payload, so decodeMessage rejects this phase
	}

	return nil
}

// addVotes adds the votes of a rank. If ranks vote on different ledgers, it discards the votes of
// all ranks, and ids shows the difference.
func (s *Summary) addVotes(rank int, m *message, isFirst bool) {
	s.flags |= m.flags
	s.tags.add(rank, m.value, nil) // without a detail
	s.calls.add(rank, m.call, m.detail)
	var ids []byte
	for _, v := range m.votes {
		ids = appendUint64s(ids, v.ID)
	}

	s.ids.add(rank, ids, nil)
	if !s.ids.areEqual() {
		s.votes = nil
		return
	}

	// The ids are equal, so s.votes has an entry for each vote.
	for i, v := range m.votes {
		if isFirst {
			s.votes = append(s.votes, newCombinedVote(v))
		}

		s.votes[i].add(rank, v)
	}
}

// addAnswers adds the answers of a rank, which must be for the same positions as those of other
// ranks.
func (s *Summary) addAnswers(m *message, isFirst bool) error {
	if isFirst {
		s.results = make([]positionResult, len(m.answers))
		for i, a := range m.answers {
			s.results[i].answer = a
		}
	}

	if len(m.answers) != len(s.results) {
		return protocolError("one rank sent %d answers and another sent %d",
			len(s.results), len(m.answers))
	}

	for i, a := range m.answers {
		if !a.hasSamePosition(s.results[i].answer) {
			return protocolError("ranks sent answers for different positions")
		}

		s.results[i].add(a)
	}

	return nil
}
