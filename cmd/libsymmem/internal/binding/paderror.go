package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// padError is the error of a failed wait on a checked pad. A wait fails, for example, if the other
// rank signals from another call site:
//
//	Timed out: rank 2 waited 5000 ms, and rank 1 has not signalled on channel 7 at site 5 ("a.py:12")
//	of group tp; rank 1 has signalled on channel 7 at site 6 ("a.py:20") instead
//
// Unlike padReports, errors contain ranks of the world.
type padError struct {
	text  string
	cause error // determines the error code and detail
}

func (e *padError) Error() string { return e.text }
func (e *padError) Unwrap() error { return e.cause }

// timeoutError returns the error for report r of a wait that timed out. If possible, the error
// contains the call sites of the missing ranks.
func (ps *pads) timeoutError(p *pad, r *padReport, reports []padReport) error {
	missing, err := p.missingRanks(r)
	if err != nil {
		return err
	}

	waited := fmt.Sprintf("rank %d waited %d ms", p.worldRank(r.rank), p.timeout.Milliseconds())
	text := fmt.Sprintf("Timed out: %s, and %s not %s %s of group %s", waited,
		ranksHave(missing), signalVerb(r.isArrival), p.describePlace(r.channel, r.site), p.group.name)
	groupErr := p.group.Cause(context.Background())
	isRankLost := errors.As(groupErr, new(*symmem.RankLostError))
	if isRankLost {
		return &padError{text: fmt.Sprintf("%v. %s", groupErr, text), cause: groupErr}
	}

	explanations := ps.signalsElsewhere(p, missing)
	if len(explanations) == 0 {
		explanations = p.waitsElsewhere(missing, reports)
	}

	return &padError{
		text: strings.Join(append([]string{text}, explanations...), "; "),
		cause: &symmem.TimeoutError{
			InCall: "a kernel", Waited: p.timeout, Missing: missing,
		},
	}
}

// missingRanks returns the ranks of the world for which the wait of report r timed out. If this
// rank waited for arrivals, these are all ranks that have not arrived, and otherwise the report's
// peer.
func (p *pad) missingRanks(r *padReport) ([]int, error) {
	var missing []int // ranks of the group
	isOwnReport := r.rank == p.group.Rank()
	if isOwnReport && r.isArrival {
		memory, err := p.read(padBytes)
		if err != nil {
			return nil, err
		}

		missing = memory.absent(r, len(p.group.Ranks()))
	}

	if len(missing) == 0 {
		missing = []int{r.peer}
	}

	for i, groupRank := range missing {
		missing[i] = p.worldRank(groupRank)
	}

	return missing, nil
}

func (p *pad) worldRank(groupRank int) int { return p.group.Ranks()[groupRank] }

func signalVerb(isArrival bool) string {
	if isArrival {
		return "arrived"
	}

	return "signalled"
}

// signalsElsewhere describes signals of the given ranks for which this rank has not waited: first
// those on pad p, then those on other pads. It skips pads that it cannot read.
func (ps *pads) signalsElsewhere(p *pad, worldRanks []int) []string {
	const maxLines = 8
	var lines []string
	isGiven := func(worldRank int) bool { return slices.Contains(worldRanks, worldRank) }
	signals, _ := p.signalsFrom(isGiven)
	for _, signal := range signals {
		lines = append(lines, signal+" instead")
	}

	for _, other := range ps.session.padTable.all() {
		if other == p || other.isFailed.Load() {
			continue
		}

		signals, _ = other.signalsFrom(isGiven)
		for _, signal := range signals {
			lines = append(lines, fmt.Sprintf("%s of group %s instead", signal, other.group.name))
		}
	}

	return lines[:min(len(lines), maxLines)]
}

// waitsElsewhere describes the failed waits of the given ranks.
func (p *pad) waitsElsewhere(worldRanks []int, reports []padReport) []string {
	var lines []string
	for _, r := range reports {
		worldRank := p.worldRank(r.rank)
		if slices.Contains(worldRanks, worldRank) {
			lines = append(lines, fmt.Sprintf("rank %d was %s instead", worldRank,
				p.describePlace(r.channel, r.site)))
		}
	}

	return lines
}

// stoppedError returns the error for report r of a kernel that the host stopped, for example
// because the group failed.
func (p *pad) stoppedError(r *padReport) error {
	cause := p.group.Cause(context.Background())
	if cause == nil {
		cause = symmem.ErrAborted
	}

	text := fmt.Sprintf("%v. Rank %d was waiting %s of group %s", cause, p.worldRank(r.rank),
		p.describePlace(r.channel, r.site), p.group.name)
	return &padError{text: text, cause: cause}
}

func (p *pad) argumentError(r *padReport) error {
	text := fmt.Sprintf("rank %d passed an invalid channel, site or peer: channel %d, site %d",
		p.worldRank(r.rank), r.channel, r.site)
	return &padError{text: text, cause: symmem.ErrInvalid}
}

// differenceError returns the error for report r of a wait that found an unexpected signal.
func (p *pad) differenceError(r *padReport) error {
	waiter, sender := p.worldRank(r.rank), p.worldRank(r.peer)
	senderSite := ""
	if !r.wereValuesOverwritten() { // otherwise, the signal may not contain the site
		senderSite = p.describeSite(r.found.site())
	}

	text := p.describeDifference(r, waiter, sender) + " of group " + p.group.name
	waiterSide := symmem.Side{
		Ranks: []int{waiter}, Event: fmt.Sprintf("signal %d", r.want.epoch()),
		Site: p.describeSite(r.site),
	}
	senderSide := symmem.Side{
		Ranks: []int{sender}, Event: fmt.Sprintf("signal %d", r.found.epoch()), Site: senderSite,
	}
	return &padError{text: text, cause: &symmem.DivergenceError{
		Group: p.group.name, Members: p.group.Ranks(), Message: text,
		Sides: []symmem.Side{waiterSide, senderSide},
	}}
}

// wereValuesOverwritten reports whether the sender wrote its next values before the waiter had read
// the previous ones.
func (r *padReport) wereValuesOverwritten() bool {
	return r.failure == padOverwritten || r.found.tag() == 0
}

// describeDifference describes how the sender's signal differs from the expected one. waiter and
// sender are ranks of the world.
func (p *pad) describeDifference(r *padReport, waiter, sender int) string {
	waiterPlace := p.describePlace(r.channel, r.site)
	hasSignalledAgain := r.found.epoch() != r.want.epoch()
	switch {
	case r.wereValuesOverwritten():
		return fmt.Sprintf("Reused too early: rank %d wrote its next values before rank %d had read "+
			"the previous ones, %s", sender, waiter, waiterPlace)
	case hasSignalledAgain:
		noun := "signal"
		if r.isArrival {
			noun = "arrival"
		}

		return fmt.Sprintf("Reused too early: rank %d %s again before rank %d had waited for the "+
			"previous %s, %s", sender, signalVerb(r.isArrival), waiter, noun, waiterPlace)
	default: // only the place differs
		senderPlace := p.describePlace(r.found.channel(), r.found.site())
		return fmt.Sprintf("Ranks signal from different call sites: rank %d waits %s, and rank %d is "+
			"%s", waiter, waiterPlace, sender, senderPlace)
	}
}

// ranksHave returns "rank 3 has" or "ranks 1, 2 have".
func ranksHave(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d has", ranks[0])
	}

	texts := make([]string, len(ranks))
	for i, rank := range ranks {
		texts[i] = fmt.Sprint(rank)
	}

	return fmt.Sprintf("ranks %s have", strings.Join(texts, ", "))
}
