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
	// Exact requires that the position, digest and pending segments of every ledger are the same
	// on all ranks. It is for calls that all ranks make at the same point in their program, such
	// as registrations.
	Exact Mode = iota
	// Prefix compares histories up to the smallest position of any rank. It is for comparisons
	// that run concurrently with the program, or after a collective whose digests differ.
	Prefix
)

// Source provides the history of a pool, as a [ledger.Ledger] does. If the pool may allocate
// during the agreement, each method must acquire the pool's lock.
type Source interface {
	// Snapshot returns the current state of the history.
	Snapshot() ledger.Snapshot
	// DigestAt returns the digest of all events before position, if it is known.
	DigestAt(position uint64) (uint64, bool)
	// EventAt returns the event at position with its call site, if it is kept.
	EventAt(position uint64) (event.Event, bool)
}

// snapshotSource hides events that are added after the agreement has started, so that a rank's
// answers are consistent with its vote in the first round.
type snapshotSource struct {
	Source
	end uint64
}

func (f snapshotSource) EventAt(position uint64) (event.Event, bool) {
	if position >= f.end {
		return event.Event{}, false
	}
	return f.Source.EventAt(position)
}

// Pending describes the segments of a pool that a rank is about to register, by their count and
// a digest. The zero value means that there are no such segments.
type Pending struct {
	Count  uint32
	Digest uint64
}

// Add returns p with one more segment. The digest depends on the order in which segments are
// added, because the order of registrations matters.
func (p Pending) Add(ordinal int32, bytes int64) Pending {
	return Pending{
		Count: p.Count + 1, Digest: ledger.Mix(p.Digest, uint64(uint32(ordinal)), uint64(bytes)),
	}
}

// Ledger describes one history in an agreement.
type Ledger struct {
	// ID identifies the pool. It is the same on all ranks.
	ID     uint64
	Source Source
	// Pending describes the segments that are about to be registered. It is compared only in
	// [Exact] mode.
	Pending Pending
}

// Config configures an agreement on one rank. Rank, Flags and Site may differ between ranks. Group
// and Names affect only the text of the report. The agreement detects and reports differences in
// the other fields and in the histories.
type Config struct {
	// Rank is this rank's number, from 0 to Ranks-1.
	Rank, Ranks int
	// Mode selects how histories are compared.
	Mode Mode
	// Group names the group in reports.
	Group string
	// Names determines how reports name ranks and pools.
	Names Names
	// Tag identifies the operation that needs the agreement. Its length is at most [MaxTag] bytes.
	// Ranks with different tags are at different points in their program.
	Tag string
	// Flags are combined over all ranks. If any rank sets a flag, only tags are compared, and the
	// Outcome contains the combined flags.
	Flags uint64
	// Ledgers lists the histories. They are compared in the order of their IDs.
	Ledgers []Ledger
	// Call, if set, is compared after the ledgers have been found to be identical.
	Call *event.Call
	// Site is the call site of Call, or "" if it is unknown. It is not compared.
	Site string
}

// note returns the site of Call, truncated to the size that a ledger keeps.
func (c Config) note() []byte {
	if c.Call == nil {
		return nil
	}
	return []byte(c.Site[:min(len(c.Site), event.MaxSiteBytes)])
}

func (c Config) validate() error {
	switch {
	case c.Ranks < 1 || c.Rank < 0 || c.Rank >= c.Ranks:
		return fmt.Errorf("starting an agreement as rank %d of %d ranks: out of range", c.Rank, c.Ranks)
	case c.Mode != Exact && c.Mode != Prefix:
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

// Machine runs an agreement on one rank. Its phases are vote, probe, events and done (see the
// package comment). It may skip a phase but never returns to an earlier one. It is not safe for
// concurrent use.
type Machine struct {
	config  Config
	ledgers []Ledger // sorted by id

	phase  phase
	round  uint64
	absent []int

	// undecided holds the ledgers that may differ, ordered by ID. Only the last of them may be
	// known to differ.
	undecided []interval
	answers   []answer       // this rank's answers in the current round
	votes     []tally        // votes from the first round, compared by agree
	calls     variants       // calls from the first round, compared by agree
	agreed    []AgreedPrefix // ledgers known to be identical
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

// Start returns the payload for the first round. The agreement compares the histories as they
// are when Start is called. They may grow afterwards.
func (m *Machine) Start() []byte {
	msg := message{
		phase: m.phase, value: append([]byte{byte(m.config.Mode)}, m.config.Tag...),
		call: encodeCall(m.config.Call), note: m.config.note(), flags: m.config.Flags,
	}
	for i, l := range m.ledgers {
		v := vote{ID: l.ID, Snapshot: l.Source.Snapshot()}
		m.ledgers[i].Source = snapshotSource{l.Source, v.Position}
		if m.config.Mode == Exact {
			v.Pending = l.Pending
		}
		msg.votes = append(msg.votes, v)
	}
	return msg.encode()
}

// Step processes the summary of a round and returns either the payload for the next round or the
// outcome. Every error wraps [ErrProtocol] and ends the agreement.
func (m *Machine) Step(s *Summary) (next []byte, outcome *Outcome, err error) {
	next, outcome, err = m.step(s)
	if err != nil || outcome != nil {
		m.phase = phaseDone
	}
	return next, outcome, err
}

func (m *Machine) step(s *Summary) ([]byte, *Outcome, error) {
	if s.phase != m.phase || s.round != m.round {
		return nil, nil, protocolError("stepping round %d with round %d", m.round, s.round)
	}
	if len(s.ranks)+len(s.absent) != m.config.Ranks || !slices.Contains(s.ranks, m.config.Rank) {
		return nil, nil, protocolError("stepping rank %d of %d with payloads of %s",
			m.config.Rank, m.config.Ranks, ranklist.Ranks(s.ranks))
	}
	m.absent = slices.Compact(slices.Sorted(slices.Values(append(m.absent, s.absent...))))
	m.round++
	switch m.phase {
	case phaseVote:
		return m.afterVote(s)
	case phaseProbe:
		return m.afterProbe(s)
	case phaseEvents:
		return m.afterEvents(s)
	case phaseDone:
	}
	return nil, nil, protocolError("stepping an agreement that has ended")
}

func (m *Machine) afterVote(s *Summary) ([]byte, *Outcome, error) {
	if !s.tags.equal() {
		return m.diverge(KindTag, 0, s.tags, tagText)
	}
	if s.flags != 0 {
		return nil, &Outcome{Flags: s.flags, Absent: m.absent}, nil
	}
	if !s.ids.equal() {
		return m.diverge(KindLedgers, 0, s.ids, m.config.Names.idsText)
	}
	if len(s.votes) != len(m.ledgers) {
		return nil, nil, protocolError("stepping %d ledgers with votes on %d",
			len(m.ledgers), len(s.votes))
	}
	for i := range s.votes {
		v := &s.votes[i]
		if v.ID != m.ledgers[i].ID {
			return nil, nil, protocolError("stepping ledger %d with a vote on ledger %d",
				m.ledgers[i].ID, v.ID)
		}
		if v.same {
			m.agreed = append(m.agreed, AgreedPrefix{Ledger: v.ID, Position: v.low, Digest: v.Digest})
			continue
		}
		in, err := v.interval(m.config.Mode)
		if err != nil {
			return nil, nil, err
		}
		m.undecided = append(m.undecided, in)
	}
	m.votes, m.calls = s.votes, s.calls
	return m.advance()
}

// advance records the ledgers that are now known to be identical as agreed, and starts the next
// round for the remaining ledgers. If none remain, it ends the agreement.
func (m *Machine) advance() ([]byte, *Outcome, error) {
	kept := m.undecided[:0]
	m.answers = m.answers[:0]
	for _, in := range m.undecided {
		positions := in.probePositions()
		if len(positions) == 0 && !in.differs {
			m.agreed = append(m.agreed, AgreedPrefix{Ledger: in.id, Position: in.lo, Digest: in.loDigest})
			continue
		}
		kept = append(kept, in)
		for _, at := range positions {
			m.answers = append(m.answers, m.answer(in.id, at))
		}
		if in.differs {
			break // Only the first difference is reported.
		}
	}
	m.undecided = kept
	switch {
	case len(m.undecided) == 0:
		return m.agree()
	case len(m.answers) == 0:
		return m.askEvents()
	}
	m.phase = phaseProbe
	msg := message{phase: m.phase, round: m.round, answers: m.answers}
	return msg.encode(), nil, nil
}

func (m *Machine) answer(id, at uint64) answer {
	digest, known := m.history(id).DigestAt(at)
	if !known {
		digest = 0
	}
	return answer{Ledger: id, Position: at, Digest: digest, Known: known}
}

// history returns a ledger's history as it was at Start.
func (m *Machine) history(id uint64) snapshotSource {
	i := slices.IndexFunc(m.ledgers, func(l Ledger) bool { return l.ID == id })
	return m.ledgers[i].Source.(snapshotSource)
}

func (m *Machine) afterProbe(s *Summary) ([]byte, *Outcome, error) {
	fits := slices.EqualFunc(s.results, m.answers, func(f probeResult, own answer) bool {
		return f.samePosition(own)
	})
	if !fits {
		return nil, nil, protocolError("stepping with answers for other positions")
	}
	for _, f := range s.results {
		i := slices.IndexFunc(m.undecided, func(in interval) bool { return in.id == f.Ledger })
		if err := m.undecided[i].narrow(f); err != nil {
			return nil, nil, err
		}
	}
	return m.advance()
}

// agree ends the agreement. It is called when all ledgers are known to be identical, and
// compares the pending segments and the calls.
func (m *Machine) agree() ([]byte, *Outcome, error) {
	for i := range m.votes {
		if v := &m.votes[i]; !v.pending.equal() {
			return m.diverge(KindPending, v.ID, v.pending, pendingText)
		}
	}
	if !m.calls.equal() {
		return m.diverge(KindCollective, 0, m.calls, m.config.Names.callText)
	}
	slices.SortFunc(m.agreed, func(a, b AgreedPrefix) int { return cmp.Compare(a.Ledger, b.Ledger) })
	return nil, &Outcome{Agreed: m.agreed, Absent: m.absent}, nil
}
