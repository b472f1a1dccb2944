package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// padError is the error of a failed wait on a checked pad. A checked pad is memory through which
// kernels of a group's ranks signal each other.
type padError struct {
	text  string
	cause error // determines the code and the details that callers get
}

func (e *padError) Error() string { return e.text }
func (e *padError) Unwrap() error { return e.cause }

// timeoutError returns the error for report r of a wait that timed out. The error names the missing
// ranks. If their signals or their reports show where these ranks are, it says so.
func (ps *pads) timeoutError(p *pad, r *padReport, reports []padReport) error {
	missing, err := p.missingRanks(r)
	if err != nil {
		return err
	}

	members := p.group.Ranks() // the world's rank of each rank of the group
	missingWorldRanks := make([]int, len(missing))
	for i, rank := range missing {
		missingWorldRanks[i] = members[rank]
	}

	verb := "signalled"
	if r.isArrival() {
		verb = "arrived"
	}

	waited := fmt.Sprintf("rank %d waited %d ms", members[r.rank], p.timeout.Milliseconds())
	text := fmt.Sprintf("Timed out: %s, and %s not %s %s of group %s", waited,
		ranksHave(missingWorldRanks), verb, p.describePlace(r.channel, r.site), p.group.name)
	groupErr := p.group.Cause(context.Background())
	if errors.As(groupErr, new(*symmem.RankLostError)) {
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

// missingRanks returns the ranks of the group for which the wait of report r timed out.
func (p *pad) missingRanks(r *padReport) ([]int, error) {
	isOwnReport := r.rank == p.group.Rank()
	if !isOwnReport || !r.isArrival() {
		return []int{r.peer}, nil
	}

	// The arrivals on this rank's pad show all missing ranks. The report names only one.
	memory, err := p.read(padBytes)
	if err != nil {
		return nil, err
	}

	absent := memory.absent(r, len(p.group.Ranks()))
	if len(absent) == 0 { // the last one has arrived since the timeout
		return []int{r.peer}, nil
	}

	return absent, nil
}

// waitsElsewhere describes the failed waits of the given ranks of the group, one per line.
func (p *pad) waitsElsewhere(ranks []int, reports []padReport) []string {
	var lines []string
	for _, r := range reports {
		if slices.Contains(ranks, r.rank) {
			lines = append(lines, fmt.Sprintf("rank %d was %s instead", p.group.Ranks()[r.rank],
				p.describePlace(r.channel, r.site)))
		}
	}

	return lines
}

// signalsElsewhere describes signals of the given ranks of the world for which this rank has not
// waited. It begins with those on pad p, and continues with those on other open pads.
func (ps *pads) signalsElsewhere(p *pad, worldRanks []int) []string {
	const maxLines = 8
	var lines []string
	isGiven := func(worldRank int) bool { return slices.Contains(worldRanks, worldRank) }
	samePad, _ := p.signalsFrom(isGiven) // a pad that cannot be read explains nothing
	for _, line := range samePad {
		lines = append(lines, line+" instead")
	}

	for _, other := range ps.session.padTable.all() {
		if other == p || other.isFailed.Load() {
			continue
		}

		found, _ := other.signalsFrom(isGiven)
		for _, line := range found {
			lines = append(lines, fmt.Sprintf("%s of group %s instead", line, other.group.name))
		}
	}

	return lines[:min(len(lines), maxLines)]
}

// stoppedError returns the error for report r of a wait that the host stopped.
func (p *pad) stoppedError(r *padReport) error {
	cause := p.group.Cause(context.Background())
	if cause == nil {
		cause = symmem.ErrAborted
	}

	text := fmt.Sprintf("%v. Rank %d was waiting %s of group %s", cause, p.group.Ranks()[r.rank],
		p.describePlace(r.channel, r.site), p.group.name)
	return &padError{text: text, cause: cause}
}

// differenceError returns the error of a wait with an invalid argument or an unexpected signal.
func (p *pad) differenceError(r *padReport) error {
	members := p.group.Ranks()
	waiter := members[r.rank]
	if r.failure == padBadArgument {
		text := fmt.Sprintf("rank %d passed an invalid channel, site or peer: channel %d, site %d",
			waiter, r.channel, r.site)
		return &padError{text: text, cause: symmem.ErrInvalid}
	}

	sender := members[r.peer]
	senderSite := p.describeSite(r.found.site())
	waiterPlace := p.describePlace(r.channel, r.site)
	var text string
	switch {
	case r.failure == padOverwritten || r.found.tag() == 0:
		senderSite = "" // the sender's word is not a signal, so it names no call site
		text = fmt.Sprintf("Reused too early: rank %d wrote its next values before rank %d had read "+
			"the previous ones, %s", sender, waiter, waiterPlace)
	case r.found.epoch() != r.want.epoch(): // the sender is one signal ahead
		verb, noun := "signalled", "signal"
		if r.isArrival() {
			verb, noun = "arrived", "arrival"
		}

		text = fmt.Sprintf("Reused too early: rank %d %s again before rank %d had waited for the "+
			"previous %s, %s", sender, verb, waiter, noun, waiterPlace)
	default:
		senderPlace := p.describePlace(r.found.channel(), r.found.site())
		text = fmt.Sprintf("Ranks signal from different call sites: rank %d waits %s, and rank %d is "+
			"%s", waiter, waiterPlace, sender, senderPlace)
	}

	text += " of group " + p.group.name
	waiterSide := symmem.Side{
		Ranks: []int{waiter}, Event: fmt.Sprintf("signal %d", r.want.epoch()),
		Site: p.describeSite(r.site),
	}
	senderSide := symmem.Side{
		Ranks: []int{sender}, Event: fmt.Sprintf("signal %d", r.found.epoch()), Site: senderSite,
	}
	return &padError{text: text, cause: &symmem.DivergenceError{
		Group: p.group.name, Members: members, Message: text,
		Sides: []symmem.Side{waiterSide, senderSide},
	}}
}

// ranksHave returns "rank 3 has", or "ranks 1, 2 have".
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
