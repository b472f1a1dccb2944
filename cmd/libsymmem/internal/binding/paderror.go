package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem"
)

// padError is the error of a failed wait on a checked pad. Its code and details are those of cause.
type padError struct {
	text  string
	cause error
}

func (e *padError) Error() string { return e.text }
func (e *padError) Unwrap() error { return e.cause }

// timeoutError returns the error for report r of a wait that timed out. The error says where the
// missing ranks are instead, as far as their signals or their reports show it.
func (ps *pads) timeoutError(p *pad, r *padReport, reports []padReport) error {
	members := p.group.Ranks()
	missing := []int{r.peer} // ranks of the group
	if r.rank == p.group.Rank() && r.isArrival() {
		memory, err := p.read(padBytes)
		if err != nil {
			return err
		}
		if absent := memory.absent(r, len(members)); len(absent) > 0 {
			missing = absent
		}
	}
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
		ranksHave(missingWorldRanks), verb, p.place(r.channel, r.site), p.group.name)
	cause := p.group.Cause(context.Background())
	if errors.As(cause, new(*symmem.RankLostError)) {
		return &padError{fmt.Sprintf("%v. %s", cause, text), cause}
	}
	elsewhere := ps.signalsElsewhere(p, missingWorldRanks)
	if len(elsewhere) == 0 {
		for _, other := range reports {
			if slices.Contains(missing, other.rank) {
				elsewhere = append(elsewhere, fmt.Sprintf("rank %d was %s instead", members[other.rank],
					p.place(other.channel, other.site)))
			}
		}
	}
	return &padError{
		strings.Join(append([]string{text}, elsewhere...), "; "),
		&symmem.TimeoutError{InCall: "a kernel", Waited: p.timeout, Missing: missingWorldRanks},
	}
}

// signalsElsewhere describes signals of the given ranks of the world for which this rank has not
// waited: first those on pad p, then those on other open pads.
func (ps *pads) signalsElsewhere(p *pad, worldRanks []int) []string {
	const maxLines = 8
	var lines []string
	includes := func(worldRank int) bool { return slices.Contains(worldRanks, worldRank) }
	own, _ := p.signalsFrom(includes) // a pad that cannot be read explains nothing
	for _, line := range own {
		lines = append(lines, line+" instead")
	}
	for _, other := range ps.session.padTable.all() {
		if other == p || other.isFailed.Load() {
			continue
		}
		found, _ := other.signalsFrom(includes)
		for _, line := range found {
			lines = append(lines, fmt.Sprintf("%s of group %s instead", line, other.group.name))
		}
	}
	return lines[:min(len(lines), maxLines)]
}

func (p *pad) stoppedError(r *padReport) error {
	cause := p.group.Cause(context.Background())
	if cause == nil {
		cause = symmem.ErrAborted
	}
	text := fmt.Sprintf("%v. Rank %d was waiting %s of group %s", cause, p.group.Ranks()[r.rank],
		p.place(r.channel, r.site), p.group.name)
	return &padError{text, cause}
}

// differenceError returns the error of a wait with an invalid argument or an unexpected signal.
func (p *pad) differenceError(r *padReport) error {
	members := p.group.Ranks()
	mine := members[r.rank]
	if r.failure == padBadArgument {
		text := fmt.Sprintf("rank %d passed an invalid channel, site or peer: channel %d, site %d",
			mine, r.channel, r.site)
		return &padError{text, symmem.ErrInvalid}
	}
	theirs := members[r.peer]
	theirSite := p.site(r.found.site())
	place := p.place(r.channel, r.site)
	var text string
	switch {
	case r.failure == padOverwritten || r.found.tag() == 0:
		theirSite = ""
		text = fmt.Sprintf("Reused too early: rank %d wrote its next values before rank %d had read "+
			"the previous ones, %s", theirs, mine, place)
	case r.found.epoch() != r.want.epoch():
		verb, noun := "signalled", "signal"
		if r.isArrival() {
			verb, noun = "arrived", "arrival"
		}
		text = fmt.Sprintf("Reused too early: rank %d %s again before rank %d had waited for the "+
			"previous %s, %s", theirs, verb, mine, noun, place)
	default:
		text = fmt.Sprintf("Ranks signal from different call sites: rank %d waits %s, and rank %d is "+
			"%s", mine, place, theirs, p.place(r.found.channel(), r.found.site()))
	}
	text += " of group " + p.group.name
	side := func(rank int, w padWord, site string) symmem.Side {
		return symmem.Side{Ranks: []int{rank}, Event: fmt.Sprintf("signal %d", w.epoch()), Site: site}
	}
	return &padError{text, &symmem.DivergenceError{
		Group: p.group.name, Members: members, Message: text,
		Sides: []symmem.Side{side(mine, r.want, p.site(r.site)), side(theirs, r.found, theirSite)},
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
