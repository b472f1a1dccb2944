package agreement

import (
	"bytes"
	"fmt"
	"slices"
)

// Summary combines the payloads of all ranks in a round. Only the fields for its phase are set.
type Summary struct {
	phase         phase
	round         uint64
	ranks, absent []int // group ranks with and without a payload

	// phaseVote
	flags uint64         // bitwise or of all ranks' flags
	tags  contributions  // modes and tags
	ids   contributions  // lists of ledger ids
	calls contributions  // details: call sites
	votes []combinedVote // by ledger; empty if the lists of ledger ids differ

	// phaseProbe
	results []positionResult // by position

	// phaseEvents
	ledger, position uint64        // see message
	sides            contributions // details: digests of requests
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

		if err := s.add(rank, payload); err != nil {
			return nil, fmt.Errorf("reading the payload of rank %d: %w", rank, err)
		}
	}

	if len(s.ranks) == 0 {
		return nil, protocolError("no rank sent a payload")
	}

	return s, nil
}

func (s *Summary) add(rank int, payload []byte) error {
	m, err := decodeMessage(payload)
	if err != nil {
		return err
	}

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
		return protocolError("the payloads have different phases, rounds, ledgers or positions")
	}

	s.ranks = append(s.ranks, rank)
	switch s.phase {
	case phaseVote:
		s.addVotes(rank, m, isFirst)
	case phaseProbe:
		return s.addAnswers(m, isFirst)
	case phaseEvents:
		s.sides.add(rank, m.tagOrSide, m.siteOrDigests)
	case phaseDone: // refused by decodeMessage
	}

	return nil
}

// addVotes discards all votes if ranks vote on different ledgers.
func (s *Summary) addVotes(rank int, m *message, isFirst bool) {
	s.flags |= m.flags
	s.tags.add(rank, m.tagOrSide, nil)
	s.calls.add(rank, m.call, m.siteOrDigests)
	var ids []byte
	for _, v := range m.votes {
		ids = appendUint64s(ids, v.ID)
	}

	s.ids.add(rank, ids, nil)
	haveSameLedgers := s.ids.areEqual()
	if !haveSameLedgers {
		s.votes = nil
		return
	}

	for i, v := range m.votes {
		if isFirst {
			s.votes = append(s.votes, newCombinedVote(v))
		}

		s.votes[i].add(rank, v)
	}
}

// addAnswers returns an error if ranks answer for different positions.
func (s *Summary) addAnswers(m *message, isFirst bool) error {
	if isFirst {
		for _, a := range m.answers {
			s.results = append(s.results, newPositionResult(a))
		}

		return nil
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

// combinedVote combines the votes of all ranks on a ledger.
type combinedVote struct {
	vote                            // of the first rank, but with the greatest Floor and Stride
	lowestPosition, highestPosition uint64
	isIdentical                     bool // all ranks have the same Position and Digest
	hasSameAgreed                   bool // all ranks have the same Agreed and AgreedDigest
	pending                         contributions
}

func newCombinedVote(first vote) combinedVote {
	return combinedVote{
		vote: first, lowestPosition: first.Position, highestPosition: first.Position,
		isIdentical: true, hasSameAgreed: true,
	}
}

func (c *combinedVote) add(rank int, v vote) {
	c.isIdentical = c.isIdentical && c.Position == v.Position && c.Digest == v.Digest
	c.hasSameAgreed = c.hasSameAgreed && c.Agreed == v.Agreed && c.AgreedDigest == v.AgreedDigest
	c.lowestPosition = min(c.lowestPosition, v.Position)
	c.highestPosition = max(c.highestPosition, v.Position)
	c.Floor = max(c.Floor, v.Floor)
	c.Stride = max(c.Stride, v.Stride)
	c.pending.add(rank, appendUint64s(nil, uint64(v.Pending.Count), v.Pending.Digest), nil)
}

const maxContributions = 16

// contributions holds the distinct values that ranks sent.
type contributions struct {
	list       []contribution // at most maxContributions, in the order of their lowest ranks
	otherRanks []int          // ranks with further values
}

type contribution struct {
	value  []byte
	detail []byte // from the lowest rank; not compared
	ranks  []int  // in ascending order
}

// add must be called in ascending order of ranks.
func (c *contributions) add(rank int, value, detail []byte) {
	i := slices.IndexFunc(c.list, func(e contribution) bool { return bytes.Equal(e.value, value) })
	switch {
	case i >= 0:
		c.list[i].ranks = append(c.list[i].ranks, rank)
	case len(c.list) == maxContributions:
		c.otherRanks = append(c.otherRanks, rank)
	default: // with copies, because the next exchange may overwrite the payload
		c.list = append(c.list, contribution{bytes.Clone(value), bytes.Clone(detail), []int{rank}})
	}
}

func (c *contributions) areEqual() bool { return len(c.list) <= 1 && len(c.otherRanks) == 0 }
