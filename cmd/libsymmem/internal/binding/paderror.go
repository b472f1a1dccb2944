package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// padError is the error of a kernel's failed wait for a signal on a checked pad. A wait fails, for
// example, if the other rank signals from another call site:
//
//	Timed out: rank 2 waited 5000 ms, and rank 1 has not signalled on channel 7 at site 5 ("a.py:12")
//	of group tp; rank 1 has signalled on channel 7 at site 6 ("a.py:20") instead
//
// The ranks in errors are ranks of the world.
type padError struct {
	text  string
	cause error // determines the error code and detail
}

func (e *padError) Error() string { return e.text }
func (e *padError) Unwrap() error { return e.cause }

// timeoutError describes a wait that timed out. If known, it also describes where the missing ranks
// have signalled or waited instead.
func (ps *pads) timeoutError(p *pad, r *padReport, reports []padReport) error {
	missing, err := p.missingRanks(r)
	if err != nil {
		return err
	}

	waiter, place := p.worldRank(r.rank), p.describePlace(r.channel, r.site)
	text := fmt.Sprintf("Timed out: rank %d waited %d ms, and %s not %s %s of group %s", waiter,
		p.timeout.Milliseconds(), ranksHave(missing), signalVerb(r.isArrival), place, p.group.name)
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

// missingRanks returns the ranks, of the world, that did not signal in time.
func (p *pad) missingRanks(r *padReport) ([]int, error) {
	missing := []int{r.peer} // ranks of the group
	isOwnReport := r.rank == p.group.Rank()
	if isOwnReport && r.isArrival { // this rank's slots show all arrivals
		memory, err := p.read(padBytes)
		if err != nil {
			return nil, err
		}

		absent := memory.absent(r, len(p.group.Ranks()))
		if len(absent) > 0 { // otherwise, the peer has arrived meanwhile
			missing = absent
		}
	}

	worldRanks := make([]int, len(missing))
	for i, groupRank := range missing {
		worldRanks[i] = p.worldRank(groupRank)
	}

	return worldRanks, nil
}

func (p *pad) worldRank(groupRank int) int { return p.group.Ranks()[groupRank] }

func signalVerb(isArrival bool) string {
	if isArrival {
		return "arrived"
	}

	return "signalled"
}

// signalsElsewhere describes pending signals of the missing ranks, first on pad p and then on other
// pads. It skips failed and unreadable pads.
func (ps *pads) signalsElsewhere(p *pad, missing []int) []string {
	const maxLines = 8
	var lines []string
	isMissing := func(worldRank int) bool { return slices.Contains(missing, worldRank) }
	signals, _ := p.signalsFrom(isMissing)
	for _, signal := range signals {
		lines = append(lines, signal+" instead")
	}

	for _, other := range ps.session.padTable.all() {
		if other == p || other.isFailed.Load() {
			continue
		}

		signals, _ = other.signalsFrom(isMissing)
		for _, signal := range signals {
			lines = append(lines, fmt.Sprintf("%s of group %s instead", signal, other.group.name))
		}
	}

	return lines[:min(len(lines), maxLines)]
}

// waitsElsewhere describes the failed waits of the missing ranks.
func (p *pad) waitsElsewhere(missing []int, reports []padReport) []string {
	var lines []string
	for _, r := range reports {
		worldRank := p.worldRank(r.rank)
		if slices.Contains(missing, worldRank) {
			lines = append(lines, fmt.Sprintf("rank %d was %s instead", worldRank,
				p.describePlace(r.channel, r.site)))
		}
	}

	return lines
}

// stoppedError describes the wait of a kernel that the host stopped, for example because the group
// failed.
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

// differenceError describes a wait that found an unexpected signal.
func (p *pad) differenceError(r *padReport) error {
	waiter, sender := p.worldRank(r.rank), p.worldRank(r.peer)
	senderSite := p.describeSite(r.found.site())
	if r.wereValuesOverwritten() {
		senderSite = "" // r.found may not contain the site
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
	return r.failure == padOverwritten || r.found.isWithdrawn()
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
