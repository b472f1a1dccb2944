package sim

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/ledger"
)

// In an agreement, ranks find out whether they all made the same allocations. For example, ranks 0
// and 1 made allocations of 512, 1024 and 512 bytes, but the second one of rank 1 had 1536 bytes:
//
//   - Each allocation is an event of the rank's history, which is stored in a ledger. Here, the
//     history of rank 0 is the common one. That of rank 1 deviates from it at position 1.
//   - Each rank has a state machine. In each round, all ranks exchange their payloads. Then the
//     state machine of each rank returns its payload for the next round.
//   - In the last round, the state machines return an outcome instead. It must be the same on all
//     ranks.
//
// RunAgreement runs the state machines of all ranks in one goroutine.

// ErrSplit means that two ranks reached different outcomes in an agreement, which is a bug.
var ErrSplit = errors.New("ranks reached different outcomes")

// Scenario describes one agreement.
type Scenario struct {
	// Ranks is the number of ranks.
	Ranks int
	// History is the common history of the ranks. It is not modified.
	History []event.Event
	// Deviations lists the differences, each from the common history. If a rank is in several of
	// them, only the last one has an effect.
	Deviations []Deviation
	// Missing lists ranks that do not take part.
	Missing []int
	// Kept is the number of events that a ledger keeps. 0 means [ledger.DefaultKept].
	Kept int
	// Mode selects how the ranks compare histories. The zero value requires equal ones.
	Mode agreement.Mode
}

// Deviation describes how the history of some ranks differs from the common history.
type Deviation struct {
	// Ranks lists the deviating ranks. They all have the same history and share one ledger.
	Ranks []int
	// Position is the index of the event at which these ranks deviate.
	Position int
	Change   Change
}

// Change turns a copy of the common history into the history of a deviating rank. The result
// differs from the event at position on.
type Change func(history []event.Event, position int) []event.Event

// Resize is a Change that changes the size of the event at position.
func Resize(history []event.Event, position int) []event.Event {
	history[position].Size += grain
	return history
}

// Drop is a Change that omits the event at position.
func Drop(history []event.Event, position int) []event.Event {
	return slices.Delete(history, position, position+1)
}

// Repeat is a Change that duplicates the event at position.
func Repeat(history []event.Event, position int) []event.Event {
	return slices.Insert(history, position, history[position])
}

// Stop is a Change that omits all events from position on.
func Stop(history []event.Event, position int) []event.Event { return history[:position] }

// Result describes a completed agreement. A payload is the message of one rank in one round.
type Result struct {
	Ranks  int // of the scenario
	Events int // in the common history
	Rounds int
	// Bytes is the total size of all payloads.
	Bytes int
	// Largest is the size of the largest payload in bytes.
	Largest int
	// Outcome is the outcome on every rank that took part.
	Outcome *agreement.Outcome
	// Elapsed is the running time. Callers set it, because the package has no clock.
	Elapsed time.Duration
}

// RunAgreement runs the agreement of a scenario until it has an outcome. It returns ErrSplit if
// ranks reach different outcomes.
func RunAgreement(s Scenario) (Result, error) {
	machines, err := s.machines()
	if err != nil {
		return Result{}, err
	}

	c := startCluster(machines)
	r := Result{Ranks: s.Ranks, Events: len(s.History)}
	for c.outcome == nil {
		r.Rounds++
		for _, p := range c.payloads {
			r.Bytes += len(p)
			r.Largest = max(r.Largest, len(p))
		}

		if err := c.runRound(); err != nil {
			return Result{}, fmt.Errorf("running round %d: %w", r.Rounds, err)
		}
	}

	r.Outcome = c.outcome
	return r, nil
}

// machines returns the state machine of each rank, or nil for missing ranks.
func (s Scenario) machines() ([]*agreement.Machine, error) {
	ledgers, err := s.ledgers()
	if err != nil {
		return nil, err
	}

	machines := make([]*agreement.Machine, s.Ranks)
	for rank := range machines {
		isMissing := slices.Contains(s.Missing, rank)
		if isMissing {
			continue
		}

		machines[rank], err = agreement.New(agreement.Config{
			Rank: rank, Ranks: s.Ranks, Mode: s.Mode, Group: "world", Tag: "simulation",
			Ledgers: []agreement.Ledger{{ID: 0, Source: ledgers[rank]}}, // of the only pool
		})
		if err != nil {
			return nil, err
		}
	}

	return machines, nil
}

// ledgers returns the ledger of each rank. Ranks with the same history share one.
func (s Scenario) ledgers() ([]*ledger.Ledger, error) {
	common := s.ledger(s.History)
	ledgers := slices.Repeat([]*ledger.Ledger{common}, s.Ranks)
	for _, d := range s.Deviations {
		isInHistory := d.Position >= 0 && d.Position < len(s.History)
		if !isInHistory {
			return nil, fmt.Errorf("deviating at event %d of %d: out of range",
				d.Position, len(s.History))
		}

		changed := d.Change(slices.Clone(s.History), d.Position)
		deviating := s.ledger(changed)
		for _, rank := range d.Ranks {
			ledgers[rank] = deviating
		}
	}

	return ledgers, nil
}

// ledger returns a ledger with the given events.
func (s Scenario) ledger(events []event.Event) *ledger.Ledger {
	l := ledger.New(s.Kept)
	const callSite = 0 // the same for all events
	for i := range events {
		l.Append(&events[i], callSite)
	}

	return l
}

// cluster holds the state of an agreement between two rounds.
type cluster struct {
	machines []*agreement.Machine // state machine of each rank; nil for missing ranks
	payloads [][]byte             // of each rank, for the next round; nil for missing ranks
	outcome  *agreement.Outcome   // nil until the ranks reach one
}

// startCluster returns the state before the first round.
func startCluster(machines []*agreement.Machine) *cluster {
	c := &cluster{machines: machines, payloads: make([][]byte, len(machines))}
	for rank, m := range machines {
		isMissing := m == nil
		if !isMissing {
			c.payloads[rank] = m.Start()
		}
	}

	return c
}

// runRound runs the next round. It sets c.outcome if the ranks have reached one. It returns
// ErrSplit if they have reached different ones, or if only some of them have reached one.
func (c *cluster) runRound() error {
	summary, err := agreement.Merge(c.payloads)
	if err != nil {
		return err
	}

	isFirst := true // no rank has been stepped in this round
	for rank, m := range c.machines {
		if m == nil {
			continue
		}

		next, outcome, err := m.Step(summary)
		if err != nil {
			return fmt.Errorf("stepping rank %d: %w", rank, err)
		}

		if isFirst {
			c.outcome = outcome
			isFirst = false
		} else if !reflect.DeepEqual(c.outcome, outcome) {
			return fmt.Errorf("stepping rank %d: %w", rank, ErrSplit)
		}

		c.payloads[rank] = next
	}

	return nil
}
