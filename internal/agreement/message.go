package agreement

import (
	"encoding/binary"
	"fmt"
)

// An agreement compares the ledgers of all ranks. A ledger is the history of a pool: its events
// have positions from 0. The agreement runs in rounds. In each round, every rank sends a message to
// all ranks, and combines the messages of all ranks in a Summary. Suppose that ranks 0 and 1 have
// the same first 5 events in ledger 1, but then different ones:
//
//   - In the first round, which is phaseVote, each rank sends a vote for each ledger: the number of
//     events, for example, and their digest (hash). The digests for ledger 1 differ.
//   - In the following rounds, which are phaseProbe, each rank sends answers: the digests of the
//     events before other positions. Digests are equal before position 5, but not before position
//     6.
//   - In the last round, which is phaseEvents, each rank sends its event at position 5, for an
//     error that shows both.

// phase is the kind of a round.
type phase uint64

const (
	phaseVote   phase = iota + 1 // ranks compare the states of all their ledgers
	phaseProbe                   // ranks compare digests to find the first difference of a ledger
	phaseEvents                  // ranks compare the event at the first difference
	phaseDone                    // no round: the agreement has ended
)

// message is one rank's message in a round. Most fields are used in one phase only, and are empty
// in the others.
type message struct {
	phase phase
	round uint64 // from 0

	// In phaseVote, value holds the mode and the tag, which names the operation that needs the
	// agreement. In phaseEvents, it holds the event. If the event or its position is unknown, it
	// holds, for example, a digest instead.
	value []byte
	// In phaseVote, call is the call of a collective that needs the agreement; see Config.Call.
	call []byte
	// In phaseVote, detail holds the call site of call. In phaseEvents, it holds the digests of the
	// requests of the event and of the next ones, unless the position is unknown.
	detail []byte

	flags            uint64   // in phaseVote: Config.Flags
	votes            []vote   // in phaseVote, sorted by ledger id
	answers          []answer // in phaseProbe
	ledger, position uint64   // in phaseEvents: id of a ledger, and position in the ledger
}

// encode returns the encoded message, called the payload.
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
	r := &reader{rest: payload} // after the first error, its methods return zero values
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

// readVotes reads the votes of a message, and checks them.
func readVotes(r *reader) []vote {
	votes := readList[vote](r, MaxLedgers, "votes")
	for i, v := range votes {
		isSorted := i == 0 || v.ID > votes[i-1].ID
		if !v.isValid() || !isSorted {
			r.fail("vote")
		}
	}

	return votes
}

// Summary combines the payloads of all ranks in a round. A field of type contributions holds the
// different values that ranks sent, and the ranks that sent each.
type Summary struct {
	phase         phase
	round         uint64
	ranks, absent []int // group ranks with and without a payload

	flags uint64         // in phaseVote: all flags that ranks have set
	tags  contributions  // in phaseVote: modes and tags
	ids   contributions  // in phaseVote: lists of ledger ids
	calls contributions  // in phaseVote: calls, with their call sites as details
	votes []combinedVote // in phaseVote: by ledger; empty if the lists of ledger ids differ

	results []positionResult // in phaseProbe: by position

	ledger, position uint64        // in phaseEvents: those of all messages
	events           contributions // in phaseEvents: the values of all messages
}

// Merge combines the payloads of a round, indexed by rank. The payloads of absent ranks are nil.
//
// It returns an error that wraps [ErrProtocol] if a payload is invalid, if payloads do not belong
// to the same round, or if all ranks are absent.
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

// add adds the message of a rank. The first message determines the round, ledger and position of
// the others.
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
	case phaseDone: // decodeMessage rejects messages of this phase
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

	// The ids are equal, so s.votes has an entry for each vote of a later rank.
	for i, v := range m.votes {
		if isFirst {
			s.votes = append(s.votes, newCombinedVote(v))
		}

		s.votes[i].add(rank, v)
	}
}

// addAnswers adds the answers of a rank. They must be for the same positions as those of the first
// rank.
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
