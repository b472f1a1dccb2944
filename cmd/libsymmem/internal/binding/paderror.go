package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// padError is the error of a failed wait on a checked pad, memory on each rank of a group through
// which kernels signal each other on channels. Sender and waiter must use the same call site:
//
//	Timed out: rank 2 waited 5000 ms, and rank 1 has not signalled on channel 7 at site 5 ("a.py:12")
//	of group tp; rank 1 has signalled on channel 7 at site 6 ("a.py:20") instead
//
// Errors contain ranks of the world, but the kernels' reports contain ranks of the group. An
// arrival is a signal to all ranks of the group.
type padError struct {
	text  string
	cause error // determines the error code and detail
}

func (e *padError) Error() string { return e.text }
func (e *padError) Unwrap() error { return e.cause }

// timeoutError returns the error for report r of a wait that timed out. If possible, it names the
// call sites that the missing ranks have reached instead. reports are the reports of all ranks.
func (ps *pads) timeoutError(p *pad, r *padReport, reports []padReport) error {
	missing, err := p.missingRanks(r)
	if err != nil {
		return err
	}

	worldRanks := p.group.Ranks() // by rank of the group
	missingWorldRanks := make([]int, len(missing))
	for i, rank := range missing {
		missingWorldRanks[i] = worldRanks[rank]
	}

	waited := fmt.Sprintf("rank %d waited %d ms", worldRanks[r.rank], p.timeout.Milliseconds())
	text := fmt.Sprintf("Timed out: %s, and %s not %s %s of group %s", waited,
		ranksHave(missingWorldRanks), r.verb(), p.describePlace(r.channel, r.site), p.group.name)
	groupErr := p.group.Cause(context.Background())
	isRankLost := errors.As(groupErr, new(*symmem.RankLostError))
	if isRankLost {
		return &padError{text: fmt.Sprintf("%v. %s", groupErr, text), cause: groupErr}
	}

	explanations := ps.signalsElsewhere(p, missingWorldRanks)
	if len(explanations) == 0 {
		explanations = p.waitsElsewhere(missing, reports)
	}

	return &padError{
		text: strings.Join(append([]string{text}, explanations...), "; "),
		cause: &symmem.TimeoutError{
			InCall: "a kernel", Waited: p.timeout, Missing: missingWorldRanks,
		},
	}
}

func (r *padReport) verb() string {
	if r.isArrival() {
		return "arrived"
	}

	return "signalled"
}

// missingRanks returns the ranks of the group for which the wait of report r timed out. The report
// names only one of them. For arrivals, this rank's pad shows all.
func (p *pad) missingRanks(r *padReport) ([]int, error) {
	isOwnReport := r.rank == p.group.Rank()
	if !isOwnReport || !r.isArrival() {
		return []int{r.peer}, nil
	}

	memory, err := p.read(padBytes)
	if err != nil {
		return nil, err
	}

	absent := memory.absent(r, len(p.group.Ranks()))
	if len(absent) == 0 { // all have arrived since the timeout
		return []int{r.peer}, nil
	}

	return absent, nil
}

// signalsElsewhere describes signals from the given ranks for which this rank has not waited, on
// pad p and then on other open pads. It skips pads that it cannot read.
func (ps *pads) signalsElsewhere(p *pad, givenWorldRanks []int) []string {
	const maxLines = 8
	var lines []string
	isGiven := func(worldRank int) bool { return slices.Contains(givenWorldRanks, worldRank) }
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

// waitsElsewhere describes the failed waits of the given ranks of the group.
func (p *pad) waitsElsewhere(givenRanks []int, reports []padReport) []string {
	var lines []string
	for _, r := range reports {
		if slices.Contains(givenRanks, r.rank) {
			lines = append(lines, fmt.Sprintf("rank %d was %s instead", p.group.Ranks()[r.rank],
				p.describePlace(r.channel, r.site)))
		}
	}

	return lines
}

// stoppedError returns the error for report r of a wait that the host stopped, as it does if the
// group fails.
func (p *pad) stoppedError(r *padReport) error {
	cause := p.group.Cause(context.Background())
	if cause == nil {
		cause = symmem.ErrAborted
	}

	text := fmt.Sprintf("%v. Rank %d was waiting %s of group %s", cause, p.group.Ranks()[r.rank],
		p.describePlace(r.channel, r.site), p.group.name)
	return &padError{text: text, cause: cause}
}

// differenceError returns the error for report r of a wait that had an invalid argument, or found a
// signal (a padWord) that does not match.
func (p *pad) differenceError(r *padReport) error {
	worldRanks := p.group.Ranks()
	waiter := worldRanks[r.rank]
	if r.failure == padBadArgument {
		text := fmt.Sprintf("rank %d passed an invalid channel, site or peer: channel %d, site %d",
			waiter, r.channel, r.site)
		return &padError{text: text, cause: symmem.ErrInvalid}
	}

	sender := worldRanks[r.peer]
	senderSite := p.describeSite(r.found.site())
	if r.wereValuesReplaced() {
		senderSite = "" // the found word may not contain it
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
		Group: p.group.name, Members: worldRanks, Message: text,
		Sides: []symmem.Side{waiterSide, senderSide},
	}}
}

// wereValuesReplaced reports whether the sender wrote its next values before the waiter had read
// the previous ones. A sender can announce this by a tag of 0.
func (r *padReport) wereValuesReplaced() bool {
	return r.failure == padOverwritten || r.found.tag() == 0
}

// describeDifference describes how the signal that the waiter found differs from the expected one.
// waiter and sender are ranks of the world.
func (p *pad) describeDifference(r *padReport, waiter, sender int) string {
	waiterPlace := p.describePlace(r.channel, r.site)
	isAhead := r.found.epoch() != r.want.epoch() // the sender has already sent a later signal
	switch {
	case r.wereValuesReplaced():
		return fmt.Sprintf("Reused too early: rank %d wrote its next values before rank %d had read "+
			"the previous ones, %s", sender, waiter, waiterPlace)
	case isAhead:
		noun := "signal"
		if r.isArrival() {
			noun = "arrival"
		}

		return fmt.Sprintf("Reused too early: rank %d %s again before rank %d had waited for the "+
			"previous %s, %s", sender, r.verb(), waiter, noun, waiterPlace)
	default:
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
