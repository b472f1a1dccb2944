package agreement

import (
	"encoding/binary"
	"slices"
)

// phase is the kind of a round.
type phase uint8

const (
	phaseVote phase = iota + 1
	phaseProbe
	phaseEvents
	phaseDone
)

// message is a payload or a summary: a payload is the summary of one rank.
type message struct {
	phase phase
	round uint64
	ranks RankSet

	// In a vote: what the agreement is for, which ledgers, which call, and the ledgers.
	tags, ids, calls variants
	votes            []vote

	// In a probe: the digests of the undecided ledgers.
	probes []probe

	// In the phase of events: what is at one position of one ledger.
	ledger, position uint64
	events           variants
}

// Merge joins two payloads or summaries of the same round. It is associative and commutative, up to
// the choice of which ranks go unlisted when there are more than 16 different contributions. The
// arguments are not modified. An error wraps [ErrProtocol].
func Merge(a, b []byte) ([]byte, error) {
	x, err := decode(a)
	if err != nil {
		return nil, err
	}
	y, err := decode(b)
	if err != nil {
		return nil, err
	}
	if err := x.merge(y); err != nil {
		return nil, err
	}
	return x.encode()
}

// MergeAll merges the payloads of a round in which payloads[i] came from rank i. A nil payload
// stands for an absent rank. A payload that speaks for another rank is refused.
func MergeAll(payloads [][]byte) ([]byte, error) {
	var sum *message
	for rank, p := range payloads {
		if p == nil {
			continue
		}
		m, err := decode(p)
		if err == nil && !slices.Equal(m.ranks, ranksOf(rank)) {
			err = protocolError("payload speaks for %s", m.ranks.words())
		}
		if err == nil && sum != nil {
			err = sum.merge(m)
		}
		if err != nil {
			return nil, wrapRank(rank, err)
		}
		if sum == nil {
			sum = m
		}
	}
	if sum == nil {
		return nil, protocolError("merging a round without payloads")
	}
	return sum.encode()
}

func (m *message) merge(o *message) error {
	if m.phase != o.phase || m.round != o.round {
		return protocolError("merging round %d with round %d", m.round, o.round)
	}
	ranks := m.ranks.union(o.ranks)
	if ranks.Len() != m.ranks.Len()+o.ranks.Len() {
		return protocolError("merging %s with %s: counted twice", m.ranks.words(), o.ranks.words())
	}
	m.ranks = ranks
	switch m.phase {
	case phaseVote:
		return m.mergeVotes(o)
	case phaseProbe:
		return m.mergeProbes(o)
	case phaseEvents:
		if m.ledger != o.ledger || m.position != o.position {
			return protocolError("merging events of different positions")
		}
		m.events = m.events.merge(o.events)
	case phaseDone:
		return protocolError("merging round %d", m.round)
	}
	return nil
}

// mergeVotes leaves the ledgers out once the ranks do not even have the same ones.
func (m *message) mergeVotes(o *message) error {
	m.tags = m.tags.merge(o.tags)
	m.ids = m.ids.merge(o.ids)
	m.calls = m.calls.merge(o.calls)
	if !m.ids.equal() {
		m.votes = nil
		return nil
	}
	if len(m.votes) != len(o.votes) {
		return protocolError("merging %d ledgers with %d", len(m.votes), len(o.votes))
	}
	for i := range m.votes {
		if m.votes[i].id != o.votes[i].id {
			return protocolError("merging different ledgers")
		}
		m.votes[i].merge(o.votes[i])
	}
	return nil
}

func (m *message) mergeProbes(o *message) error {
	if len(m.probes) != len(o.probes) {
		return protocolError("merging %d probes with %d", len(m.probes), len(o.probes))
	}
	for i := range m.probes {
		if !m.probes[i].sameQuestion(o.probes[i]) {
			return protocolError("merging different probes")
		}
		m.probes[i].merge(o.probes[i])
	}
	return nil
}

func (m *message) encode() ([]byte, error) {
	b := append(make([]byte, 0, 256), wireVersion, byte(m.phase))
	b = binary.AppendUvarint(b, m.round)
	b = m.ranks.append(b)
	switch m.phase {
	case phaseVote:
		b = m.tags.append(b)
		b = m.ids.append(b)
		b = m.calls.append(b)
		b = binary.AppendUvarint(b, uint64(len(m.votes)))
		for i := range m.votes {
			b = m.votes[i].append(b)
		}
	case phaseProbe:
		b = binary.AppendUvarint(b, uint64(len(m.probes)))
		for i := range m.probes {
			b = m.probes[i].append(b)
		}
	case phaseEvents:
		b = binary.AppendUvarint(b, m.ledger)
		b = binary.AppendUvarint(b, m.position)
		b = m.events.append(b)
	case phaseDone:
	}
	if len(b) > MaxPayload {
		return nil, protocolError("encoding %d bytes", len(b))
	}
	return b, nil
}

func decode(b []byte) (*message, error) {
	if len(b) > MaxPayload {
		return nil, protocolError("decoding %d bytes", len(b))
	}
	r := &reader{b: b}
	if v := r.u8("version"); r.err == nil && v != wireVersion {
		return nil, protocolError("decoding version %d", v)
	}
	m := &message{phase: phase(r.u8("phase")), round: r.uvarint("round")}
	m.ranks = r.rankSet("ranks")
	if len(m.ranks) == 0 {
		r.fail("ranks")
	}
	switch m.phase {
	case phaseVote:
		m.decodeVote(r)
	case phaseProbe:
		m.probes = r.probes()
	case phaseEvents:
		m.ledger, m.position = r.uvarint("ledger"), r.uvarint("position")
		m.events = r.variants(m.ranks, "events")
	case phaseDone:
		r.fail("phase")
	default:
		r.fail("phase")
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail("rest")
	}
	if r.err != nil {
		return nil, r.err
	}
	return m, nil
}

func (m *message) decodeVote(r *reader) {
	m.tags = r.variants(m.ranks, "tags")
	m.ids = r.variants(m.ranks, "ledgers")
	m.calls = r.variants(m.ranks, "calls")
	n := r.count(MaxLedgers, "votes")
	for i := range n {
		v := r.vote(m.ranks)
		if i > 0 && v.id <= m.votes[i-1].id {
			r.fail("order of ledgers")
		}
		if r.err != nil {
			return
		}
		m.votes = append(m.votes, v)
	}
}
