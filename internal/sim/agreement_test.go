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

// An agreement is a protocol that compares the ranks' histories of allocations, which are stored in
// ledgers. In each round, all ranks exchange payloads. From these, each rank's state machine
// computes its next payload or, in the last round, the outcome. RunAgreement runs all state
// machines in one goroutine.

// ErrSplit means that ranks reached different outcomes, which is a bug.
var ErrSplit = errors.New("ranks reached different outcomes")

// Scenario describes one agreement.
type Scenario struct {
	Ranks      int            // number of ranks
	History    []event.Event  // common history of all ranks without a Deviation; not modified
	Deviations []Deviation    // from History; the last one that lists a rank replaces earlier ones
	Missing    []int          // ranks that do not take part
	Kept       int            // number of events that a ledger keeps; 0 means ledger.DefaultKept
	Mode       agreement.Mode // how histories are compared; the zero value means exactly
}

// Deviation describes how the history of some ranks differs from the common history.
type Deviation struct {
	Ranks    []int // share one changed history
	Position int   // index of the event at which they deviate
	Change   Change
}

// Change returns the history of deviating ranks. It may modify history, a copy of the common one.
type Change func(history []event.Event, position int) []event.Event

// Resize enlarges the event at position.
func Resize(history []event.Event, position int) []event.Event {
	history[position].Size += grain
	return history
}

// Drop omits the event at position.
func Drop(history []event.Event, position int) []event.Event {
	return slices.Delete(history, position, position+1)
}

// Repeat duplicates the event at position.
func Repeat(history []event.Event, position int) []event.Event {
	return slices.Insert(history, position, history[position])
}

// Stop omits all events from position on.
func Stop(history []event.Event, position int) []event.Event { return history[:position] }

// Result describes a completed agreement.
type Result struct {
	Ranks   int
	Events  int // in the common history
	Rounds  int
	Bytes   int // total size of all payloads
	Largest int // size of the largest payload, in bytes
	Outcome *agreement.Outcome
	Elapsed time.Duration // not set by RunAgreement
}

// RunAgreement runs a scenario's agreement. It returns ErrSplit if outcomes differ between ranks.
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

// machines returns the state machines by rank, with nil for missing ranks.
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
			Ledgers: []agreement.Ledger{{ID: 0, Source: ledgers[rank]}},
		})
		if err != nil {
			return nil, err
		}
	}

	return machines, nil
}

// ledgers returns the ledgers by rank. Ranks with the same history share one.
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

func (s Scenario) ledger(events []event.Event) *ledger.Ledger {
	l := ledger.New(s.Kept)
	const callSite = 0 // the same for all events
	for i := range events {
		l.Append(&events[i], callSite)
	}

	return l
}

// cluster is the state of all ranks between two rounds.
type cluster struct {
	machines []*agreement.Machine // by rank; nil for missing ranks
	payloads [][]byte             // of the next round, by rank; nil for missing ranks
	outcome  *agreement.Outcome   // nil until the ranks reach one
}

// startCluster returns the state before the first round.
func startCluster(machines []*agreement.Machine) *cluster {
	c := &cluster{machines: machines, payloads: make([][]byte, len(machines))}
	for rank, m := range machines {
		if m != nil {
			c.payloads[rank] = m.Start()
		}
	}

	return c
}

// runRound runs the next round and, after the last one, sets c.outcome. It returns ErrSplit if the
// ranks' outcomes differ.
func (c *cluster) runRound() error {
	summary, err := agreement.Merge(c.payloads)
	if err != nil {
		return err
	}

	isFirst := true
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
