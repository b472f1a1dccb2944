package agreement

import (
	"encoding/binary"
	"fmt"
)

// An agreement compares the ranks' ledgers. A ledger is the history of a pool: a list of events
// with positions from 0. In each round, every rank sends a message to all ranks, and Merge combines
// all messages in a Summary.

// phase is the kind of a round.
type phase uint64

const (
	phaseVote   phase = iota + 1 // ranks compare the lengths and digests (hashes) of all ledgers
	phaseProbe                   // ranks search for the first difference
	phaseEvents                  // ranks compare the event at the first difference
	phaseDone                    // the agreement has ended
)

// message is one rank's message in a round. The fields for other phases are empty.
type message struct {
	phase phase
	round uint64 // from 0

	// These fields are used in phaseVote.
	flags uint64 // Config.Flags
	call  []byte // Config.Call
	votes []vote // sorted by ledger id

	answers []answer // in phaseProbe

	ledger, position uint64 // in phaseEvents: where the ledgers differ

	value  []byte // in phaseVote: Config.Mode and Config.Tag; in phaseEvents: a side, see decodeSide
	detail []byte // in phaseVote: Config.Site; in phaseEvents: result of requestDigestsFrom
}

// encode returns the encoded message, called payload.
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

// decodeMessage decodes a payload. Errors wrap ErrProtocol.
func decodeMessage(payload []byte) (*message, error) {
	r := &reader{rest: payload} // after an error, reads zero values
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
		m.votes = readVotes(r)
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

func readVotes(r *reader) []vote {
	votes := readList[vote](r, MaxLedgers, "votes")
	for i, v := range votes {
		isFirst := i == 0
		isUnsorted := !isFirst && v.ID <= votes[i-1].ID
		if isUnsorted || !v.isValid() {
			r.fail("vote")
		}
	}

	return votes
}

// Summary combines the payloads of all ranks in a round. A field of type contributions holds each
// distinct value and the ranks that sent it.
type Summary struct {
	phase         phase
	round         uint64
	ranks, absent []int // group ranks with and without a payload

	// These fields are used in phaseVote.
	flags uint64         // bitwise or of all ranks' flags
	tags  contributions  // modes and tags
	ids   contributions  // lists of ledger ids
	calls contributions  // calls; the details are call sites
	votes []combinedVote // by ledger; empty if the lists of ledger ids differ

	results []positionResult // in phaseProbe: by position

	// These fields are used in phaseEvents.
	ledger, position uint64 // where the ledgers differ
	events           contributions
}

// Merge combines the payloads of a round, indexed by rank, with nil for absent ranks. It returns an
// error that wraps [ErrProtocol] if a payload is invalid, if payloads are not from the same round,
// or if all ranks are absent.
func Merge(payloads [][]byte) (*Summary, error) {
	s := &Summary{}
	for rank, payload := range payloads {
		if payload == nil {
			s.absent = append(s.absent, rank)
			continue
		}

		m, err := decodeMessage(payload)
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

// add adds the message of a rank. All messages must have the same round, ledger and position.
func (s *Summary) add(rank int, m *message) error {
	isFirst := len(s.ranks) == 0
	if isFirst {
		s.phase = m.phase
		s.round = m.round
		s.ledger = m.ledger
		s.position = m.position
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
	case phaseDone: // decodeMessage rejects messages of this phase
	}

	return nil
}

// addVotes adds the votes of a rank. It discards all votes if ranks vote on different ledgers.
func (s *Summary) addVotes(rank int, m *message, isFirst bool) {
	s.flags |= m.flags
	s.tags.add(rank, m.value, nil)
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

	// All ranks vote on the same ledgers in the same order.
	for i, v := range m.votes {
		if isFirst {
			s.votes = append(s.votes, newCombinedVote(v))
		}

		s.votes[i].add(rank, v)
	}
}

// addAnswers adds the answers of a rank. All ranks must answer for the same positions.
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
