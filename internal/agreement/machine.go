package agreement

import (
	"cmp"
	"fmt"
	"slices"

	"symmem/event"
	"symmem/internal/ledger"
	"symmem/internal/ranklist"
)

// Mode selects how histories are compared.
type Mode uint8

const (
	// ModeExact requires the same position, digest and pending segments on all ranks. It is for
	// calls that all ranks make at the same point of their program.
	ModeExact Mode = iota
	// ModePrefix compares histories up to the smallest position of any rank.
	ModePrefix
)

// Source provides the history of a pool. Its methods must be safe for concurrent use if the pool
// may allocate during the agreement.
type Source interface {
	Snapshot() ledger.Snapshot
	// DigestAt returns the digest of all events before position.
	DigestAt(position uint64) (uint64, bool)
	// EventAt returns the event at position with its call site.
	EventAt(position uint64) (event.Event, bool)
}

// snapshotSource hides events after the vote, to keep later answers consistent with it.
type snapshotSource struct {
	Source
	end uint64
}

func (s snapshotSource) EventAt(position uint64) (event.Event, bool) {
	if position >= s.end {
		return event.Event{}, false
	}

	return s.Source.EventAt(position)
}

// Pending describes the segments of a pool that a rank is about to register.
type Pending struct {
	Count  uint32
	Digest uint64
}

// Add returns p with one more segment. The digest depends on the order of calls.
func (p Pending) Add(ordinal int32, bytes int64) Pending {
	return Pending{
		Count: p.Count + 1, Digest: ledger.Mix(p.Digest, uint64(uint32(ordinal)), uint64(bytes)),
	}
}

// Ledger describes one history in an agreement.
type Ledger struct {
	ID     uint64
	Source Source
	// Pending is compared only in [ModeExact] mode.
	Pending Pending
}

// Config configures an agreement on one rank. Rank, Flags, Site and CallDiffers may differ between
// ranks. Group and Names are used only in reports. Other differences are reported.
type Config struct {
	Rank, Ranks int
	Mode        Mode
	Group       string
	Names       Names
	// Tag names the operation that needs the agreement, in at most [MaxTag] bytes.
	Tag string
	// Flags are combined over all ranks. If one is set, only tags are compared.
	Flags   uint64
	Ledgers []Ledger
	// Call may be nil. It is compared after the ledgers. Site is its call site.
	Call *event.Call
	Site string
	// CallDiffers is set if the call of another rank is known to differ. If ranks are then absent,
	// even equal calls of the others are a divergence.
	CallDiffers bool
}

func (c Config) siteOfCall() []byte {
	if c.Call == nil {
		return nil
	}

	return []byte(c.Site[:min(len(c.Site), event.MaxSiteBytes)])
}

func (c Config) validate() error {
	switch {
	case c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks:
		return fmt.Errorf("starting an agreement as rank %d of %d ranks: out of range", c.Rank, c.Ranks)
	case c.Mode != ModeExact && c.Mode != ModePrefix:
		return fmt.Errorf("starting an agreement in mode %d: unknown", c.Mode)
	case len(c.Names.Members) > 0 && len(c.Names.Members) != c.Ranks:
		return fmt.Errorf("starting an agreement of %d ranks with names for %d", c.Ranks,
			len(c.Names.Members))
	case len(c.Tag) > MaxTag:
		return fmt.Errorf("starting an agreement with a tag of %d bytes: the maximum is %d",
			len(c.Tag), MaxTag)
	case len(c.Ledgers) > MaxLedgers:
		return fmt.Errorf("starting an agreement over %d pools: the maximum is %d",
			len(c.Ledgers), MaxLedgers)
	}

	return nil
}

// Machine runs an agreement on one rank, in the phases vote, probe, events and done, some of which
// it may skip. It is not safe for concurrent use.
type Machine struct {
	config  Config
	ledgers []Ledger // sorted by id

	phase  phase
	round  uint64
	absent []int

	// searches holds the ledgers that may differ, by ID. Only the last may be known to differ.
	searches []searchRange
	answers  []answer       // this rank's answers in the current round
	votes    []combinedVote // from the first round
	calls    contributions  // from the first round
	agreed   []AgreedPrefix // ledgers known to be identical
}

// New returns a machine that has not been started.
func New(c Config) (*Machine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}

	m := &Machine{config: c, ledgers: slices.Clone(c.Ledgers), phase: phaseVote}
	slices.SortFunc(m.ledgers, func(a, b Ledger) int { return cmp.Compare(a.ID, b.ID) })
	for i := 1; i < len(m.ledgers); i++ {
		if m.ledgers[i].ID == m.ledgers[i-1].ID {
			return nil, fmt.Errorf("starting an agreement: pool %d is listed twice", m.ledgers[i].ID)
		}
	}

	return m, nil
}

// Start returns the payload for the first round. Later events are not compared.
func (m *Machine) Start() []byte {
	msg := message{
		phase: m.phase, tagOrSide: append([]byte{byte(m.config.Mode)}, m.config.Tag...),
		call: encodeOptionalCall(m.config.Call), siteOrDigests: m.config.siteOfCall(),
		flags: m.config.Flags,
	}
	for i, l := range m.ledgers {
		v := vote{ID: l.ID, Snapshot: l.Source.Snapshot()}
		m.ledgers[i].Source = snapshotSource{l.Source, v.Position}
		if m.config.Mode == ModeExact {
			v.Pending = l.Pending
		}

		msg.votes = append(msg.votes, v)
	}

	return msg.encode()
}

// Step returns either the payload for the next round or the outcome. Every error wraps
// [ErrProtocol] and ends the agreement.
func (m *Machine) Step(s *Summary) (next []byte, outcome *Outcome, err error) {
	next, outcome, err = m.step(s)
	if err != nil || outcome != nil {
		m.phase = phaseDone
	}

	return next, outcome, err
}

func (m *Machine) step(s *Summary) ([]byte, *Outcome, error) {
	if s.phase != m.phase || s.round != m.round {
		return nil, nil, protocolError("this rank is in round %d, but the payloads are of round %d",
			m.round, s.round)
	}

	if len(s.ranks)+len(s.absent) != m.config.Ranks || !slices.Contains(s.ranks, m.config.Rank) {
		return nil, nil, protocolError("rank %d of %d got only the payloads of %s",
			m.config.Rank, m.config.Ranks, ranklist.Ranks(s.ranks))
	}

	m.absent = slices.Compact(slices.Sorted(slices.Values(append(m.absent, s.absent...))))
	m.round++
	switch m.phase {
	case phaseVote:
		return m.handleVotes(s)
	case phaseProbe:
		return m.handleDigests(s)
	case phaseEvents:
		return m.handleEvents(s)
	case phaseDone:
	}

	return nil, nil, protocolError("a round after the end of the agreement")
}

func (m *Machine) handleVotes(s *Summary) ([]byte, *Outcome, error) {
	if !s.tags.areEqual() {
		return m.diverge(KindTag, 0, s.tags, describeTag)
	}

	if s.flags != 0 {
		return nil, &Outcome{Flags: s.flags, Absent: m.absent}, nil
	}

	if !s.ids.areEqual() {
		return m.diverge(KindLedgers, 0, s.ids, m.config.Names.describePools)
	}

	if len(s.votes) != len(m.ledgers) {
		return nil, nil, protocolError("this rank has %d ledgers, but the votes are on %d",
			len(m.ledgers), len(s.votes))
	}

	for i := range s.votes {
		v := &s.votes[i]
		if v.ID != m.ledgers[i].ID {
			return nil, nil, protocolError("expected a vote on ledger %d, got one on ledger %d",
				m.ledgers[i].ID, v.ID)
		}

		if v.isIdentical {
			m.agreed = append(m.agreed,
				AgreedPrefix{Ledger: v.ID, Position: v.lowestPosition, Digest: v.Digest})
			continue
		}

		search, err := v.newSearch(m.config.Mode)
		if err != nil {
			return nil, nil, err
		}

		m.searches = append(m.searches, search)
	}

	m.votes, m.calls = s.votes, s.calls
	return m.advance()
}

func (m *Machine) advance() ([]byte, *Outcome, error) {
	remaining := m.searches[:0]
	m.answers = m.answers[:0]
	for _, search := range m.searches {
		positions := search.positionsToProbe()
		if len(positions) == 0 && !search.differs {
			m.agreed = append(m.agreed,
				AgreedPrefix{Ledger: search.id, Position: search.first, Digest: search.firstDigest})
			continue
		}

		remaining = append(remaining, search)
		for _, position := range positions {
			m.answers = append(m.answers, m.answer(search.id, position))
		}

		if search.differs {
			break // only the first difference is reported
		}
	}

	m.searches = remaining
	switch {
	case len(m.searches) == 0:
		return m.agree()
	case len(m.answers) == 0:
		return m.startEventsPhase()
	}

	m.phase = phaseProbe
	msg := message{phase: m.phase, round: m.round, answers: m.answers}
	return msg.encode(), nil, nil
}

func (m *Machine) answer(id, position uint64) answer {
	digest, isKept := m.history(id).DigestAt(position)
	if !isKept {
		digest = 0
	}

	return answer{Ledger: id, Position: position, Digest: digest, Kept: isKept}
}

func (m *Machine) history(id uint64) snapshotSource {
	i := slices.IndexFunc(m.ledgers, func(l Ledger) bool { return l.ID == id })
	return m.ledgers[i].Source.(snapshotSource)
}

func (m *Machine) handleDigests(s *Summary) ([]byte, *Outcome, error) {
	isMatching := slices.EqualFunc(s.results, m.answers, func(r positionResult, own answer) bool {
		return r.hasSamePosition(own)
	})
	if !isMatching {
		return nil, nil, protocolError("the answers are not for the positions that this rank probed")
	}

	for _, r := range s.results {
		i := slices.IndexFunc(m.searches, func(s searchRange) bool { return s.id == r.Ledger })
		if err := m.searches[i].narrow(r); err != nil {
			return nil, nil, err
		}
	}

	return m.advance()
}

func (m *Machine) agree() ([]byte, *Outcome, error) {
	for i := range m.votes {
		if v := &m.votes[i]; !v.pending.areEqual() {
			return m.diverge(KindPending, v.ID, v.pending, describePending)
		}
	}

	if !m.calls.areEqual() || m.config.CallDiffers && len(m.absent) > 0 {
		return m.diverge(KindCollective, 0, m.calls, m.config.Names.describeCall)
	}

	slices.SortFunc(m.agreed, func(a, b AgreedPrefix) int { return cmp.Compare(a.Ledger, b.Ledger) })
	return nil, &Outcome{Agreed: m.agreed, Absent: m.absent}, nil
}
