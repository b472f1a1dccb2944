package symmem

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// Err returns the fault that ended the group, the same on every rank. It does not wait, and is nil
// until Ended is closed: see Cause.
func (g *Group) Err() error { return aligner{g}.see(context.Cause(g.life)) }

// Cause returns the fault that ended the group, or nil where this rank has seen none. Where it has,
// Cause waits until the ranks have found out the cause together, for seconds at most, or until the
// context ends, whose error it returns then.
func (g *Group) Cause(ctx context.Context) error {
	if g.life.Err() == nil && g.comm.Cause() != nil {
		ctx = orBackground(ctx)
		ranked.Waiting()
		select {
		case <-g.life.Done():
		case <-ctx.Done():
			if g.life.Err() == nil {
				return fmt.Errorf("waiting for the cause of the fault of group %s: %w", g.id,
					context.Cause(ctx))
			}
		}
	}
	return g.Err()
}

// watch finds out with the other ranks what went wrong, as soon as this rank's communicator
// fails, or that of another rank has, whether or not the program is inside a call.
func (g *Group) watch() {
	look := time.NewTicker(peerCheckInterval)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			g.comm.CheckPeers()
		case <-g.comm.Failed():
			if g.life.Err() == nil {
				close(g.failing)
				g.end(g.findCause())
			}
			return
		case <-g.life.Done():
			return
		}
	}
}

// peerCheckInterval is how often a group looks whether another rank has failed while it is in no
// call.
const peerCheckInterval = time.Second

// awaitCause waits until the ranks have found the cause of a fault that a call of the backend has
// returned, and returns that. An error that is no fault of the group is returned as it is.
func (g *Group) awaitCause(err error) error {
	if err == nil || errors.Is(err, driver.ErrInterrupted) || !g.isOwnFault(err) {
		return err // a caller that was interrupted does not wait for the others again
	}
	ranked.Waiting()
	<-g.life.Done()
	return g.Err()
}

// isOwnFault reports whether an error is the communicator's fault.
func (g *Group) isOwnFault(err error) bool {
	return g.comm.Cause() != nil && (groupOf(err) == g || errors.Is(err, driver.ErrFault))
}

// groupOf returns the group whose fault a backend's error is, or nil. For a PriorError that is the
// group whose call was not run; its Cause has the group that had failed before.
func groupOf(err error) *Group {
	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}
	g, _ := fault.Owner.(*Group)
	return g
}

// reportTimeout bounds one exchange of reports on the fault lane. Ranks that wait in a call come at
// once. Where one does not come in time the others decide without its report.
const reportTimeout = 2 * time.Second

// maxReportRounds is how often ranks exchange reports while one of them waits for the cause of the
// fault of another group.
const maxReportRounds = 12

// findCause returns why the group has failed. A rank that has left the group asks no other.
func (g *Group) findCause() error {
	if cause := g.comm.Cause(); errors.Is(cause, ErrClosed) {
		return cause
	}
	return g.agreeOnCause(g.comm.Cause())
}

// agreeOnCause exchanges reports with the other ranks on the fault lane and returns one error, the
// same on all of them. A rank whose stream had failed before, by the fault of another group, has
// the others wait until it knows that fault.
func (g *Group) agreeOnCause(cause error) error {
	for round := 0; ; round++ {
		mine := g.makeReport(cause, time.Duration(min(round, 1))*reportTimeout/4)
		mine.Suspect = aligner{g}.suspectsPools()
		message, err := json.Marshal(mine)
		if err != nil {
			return errors.Join(cause, err)
		}
		got, err := g.exchangeReports(context.Background(), message)
		if err != nil {
			return errors.Join(cause, err)
		}
		if all := g.decodeReports(got); !all.pending || round == maxReportRounds {
			return g.firstCause(cause, all)
		}
	}
}

// makeReport makes this rank's report. For a fault of another group it waits a while until that
// group's ranks have found the cause, and is pending if they have not.
func (g *Group) makeReport(cause error, wait time.Duration) report {
	var prior *PriorError
	if !errors.As(cause, &prior) {
		return reportOf(cause)
	}
	first := prior.Cause
	source := groupOf(first)
	if source == nil || source == g {
		return reportOf(cause)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	pending := false
	select {
	case <-source.life.Done():
		first = context.Cause(source.life)
	case <-timer.C:
		pending = true
	}
	r := reportOf(&PriorError{Doing: prior.Doing, Rank: prior.Rank, Cause: first})
	r.Pending = pending
	return r
}

// reports holds the reports of the ranks of a group, by kind and in group order.
type reports struct {
	of           map[string][]report
	pending      bool  // some rank does not know its cause yet
	placeUnknown bool  // some rank does not say in which call it was
	suspect      bool  // some rank holds a pool suspect since a fault of another group
	missing      []int // world ranks that have not reported
}

// decodeReports decodes the reports of one exchange.
func (g *Group) decodeReports(got [][]byte) reports {
	all := reports{of: map[string][]report{}}
	for from, m := range got {
		r := report{from: g.ranks[from]}
		if json.Unmarshal(m, &r) != nil || !r.valid() {
			all.missing = append(all.missing, g.ranks[from])
			continue
		}
		all.of[r.Kind] = append(all.of[r.Kind], r)
		all.pending = all.pending || r.Pending
		all.suspect = all.suspect || r.Suspect
		all.placeUnknown = all.placeUnknown || r.Doing == ""
	}
	return all
}

// exchangeReports is one exchange on the fault lane.
func (g *Group) exchangeReports(ctx context.Context, payload []byte) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, min(reportTimeout, g.rt.opts.Timeout))
	defer cancel()
	return g.comm.Exchange(ctx, driver.LaneFault, payload)
}

// firstCause finds the first cause among the reports of all ranks, in the order of the kinds in
// report.go. Where no report has one it returns this rank's own.
func (g *Group) firstCause(cause error, all reports) error {
	switch of := all.of; {
	case len(of[kindLost]) > 0:
		var ranks []int
		for _, r := range of[kindLost] {
			ranks = append(ranks, r.Lost.Ranks...)
		}
		return &RankLostError{Ranks: distinct(ranks), Doing: of[kindLost][0].Doing, Members: g.ranks}
	case len(of[kindPrior]) > 0:
		return of[kindPrior][0].err()
	case len(of[kindClosed]) > 0:
		elsewhere := map[int]string{}
		for _, r := range of[kindClosed] {
			elsewhere[r.from] = "has closed its Runtime meanwhile"
		}
		return &DeadlockError{
			Doing: "joining group " + g.ID(), Elsewhere: elsewhere, Members: g.ranks,
		}
	case len(of[kindDiverged]) > 0:
		everywhere := !all.placeUnknown && len(all.missing) == 0
		if err := g.explainDivergence(cause, everywhere, all.suspect); !errors.Is(err, cause) {
			return all.advise(err)
		}
		// The histories are equal, as when a rank has left the group: then where each rank is.
		elsewhere := map[int]string{}
		for _, r := range of[kindDiverged] {
			if r.Deadlock != nil {
				maps.Copy(elsewhere, r.Deadlock.Elsewhere)
			}
		}
		if len(elsewhere) > 0 {
			return all.advise(&DeadlockError{
				Doing: of[kindDiverged][0].Doing, Elsewhere: elsewhere, Members: g.ranks,
			})
		}
	case len(of[kindMessages]) > 0:
		return g.messageCause(of[kindMessages])
	case len(of[kindLate]) > 0:
		return all.advise(g.late(of[kindLate]))
	case len(of[kindAborted]) > 0:
		return g.aborted(of[kindAborted])
	case len(of[kindOther]) > 0:
		first := of[kindOther][0]
		return fmt.Errorf("group %s failed on %s: %s", g.ID(),
			driver.RanksOf([]int{first.from}, g.ranks), first.Text)
	case len(all.missing) > 0:
		// A rank has failed, and has not reported why.
		return &TimeoutError{
			Doing: "finding out why group " + g.ID() + " failed", Waited: reportTimeout,
			Missing: all.missing,
			Members: g.ranks,
		}
	}
	return cause
}

// advise adds what to do where ranks have met a pool at different points after a fault.
func (all *reports) advise(err error) error {
	if !all.suspect {
		return err
	}
	return fmt.Errorf("%w; a rank has seen the fault of another group and realigns the pools at the "+
		"next call that uses them: let all ranks of a pool see the fault first (Synchronize, Cause or "+
		"Close of the failed group), or call Check or Split on a group of these ranks", err)
}

// late joins the reports of ranks that others were late for. What is one text comes from the first
// report, by rank, so that it is the same on all ranks; all of them ask for the same counts.
func (g *Group) late(reports []report) *TimeoutError {
	e := &TimeoutError{
		Doing: reports[0].Doing, Waited: reports[0].Late.Waited, Activity: map[int]string{},
		Members: g.ranks,
	}
	for _, r := range reports {
		e.Missing = append(e.Missing, r.Late.Missing...)
		maps.Copy(e.Activity, r.Late.Activity)
		e.Counts = cmp.Or(e.Counts, r.Late.Counts)
	}
	e.Missing = distinct(e.Missing)
	for _, r := range reports {
		if !slices.Contains(e.Missing, r.from) {
			continue
		}
		// It is late for some, and has reported what it waits for itself.
		e.Activity[r.from] = "waits in " + r.Doing
		if len(r.Late.Missing) > 0 {
			e.Activity[r.from] += ", for " + driver.Ranks(r.Late.Missing)
		}
	}
	return e
}

// distinct orders ranks, each once.
func distinct(ranks []int) []int { return slices.Compact(slices.Sorted(slices.Values(ranks))) }

// aborted is the error of a group that ranks have aborted. It names those that report it, or, where
// they report nothing any more, those that others have named.
func (g *Group) aborted(reports []report) error {
	var ranks []int
	why := ""
	for _, r := range reports {
		if r.Peer != nil && len(r.Peer.Ranks) > 0 {
			ranks = append(ranks, r.Peer.Ranks...)
			continue
		}
		ranks = append(ranks, r.from)
		if r.Interrupted {
			why = ": " + r.Text
		}
	}
	return fmt.Errorf("group %s: %w by %s%s", g.ID(), ErrAborted,
		driver.RanksOf(distinct(ranks), g.ranks), why)
}

// comparable are the histories that ranks compare after a fault. Ranks that were at different
// points of their programs may have made different pools. Where a rank holds a pool suspect
// histories may differ without a mistake.
func (g *Group) comparable(mode agreement.Mode, suspect bool) ([]agreement.Ledger, error) {
	if suspect {
		return nil, nil
	}
	if mode == agreement.Prefix {
		return g.sharedHistories(context.Background(), g.exchangeReports)
	}
	return g.histories(), nil
}

// explainDivergence finds the first differing event of the pools' histories, or, where these are
// equal, the collective in which the ranks differ, or at least, if every rank has reported it, in
// which call each of them is: if one has not reported, the others may differ because of it.
func (g *Group) explainDivergence(cause error, everywhere, suspect bool) error {
	comparisons := []agreement.Config{
		{Mode: agreement.Prefix, Call: planner{g}.callOf(cause), Site: g.latestSite()},
		// Ranks that wait for each other in different places have stopped, so what one of them
		// has done beyond the others counts, too.
		{Mode: agreement.Exact},
	}
	if here := reportOf(cause).Doing + g.values.inStep(); everywhere {
		here = here[:min(len(here), agreement.MaxTag)]
		comparisons = append(comparisons, agreement.Config{Mode: agreement.Exact, Tag: here})
	}
	var err error
	for _, c := range comparisons {
		if c.Ledgers, err = g.comparable(c.Mode, suspect); err != nil {
			return errors.Join(cause, err)
		}
		outcome, err := g.compare(context.Background(), g.exchangeReports, c)
		if err != nil {
			return errors.Join(cause, err)
		}
		if err := g.divergence(outcome); err != nil {
			return err
		}
	}
	return cause
}

// messageCause makes one error of what ranks have reported about messages. If these do not match at
// a collective, all ranks exchange how many they have sent and received before it.
func (g *Group) messageCause(reports []report) error {
	first := reports[0].Messages
	counts, ok := g.comm.(driver.MessageCounts)
	if first.Fault != driver.MessagesUnmatched || first.Number == 0 || !ok {
		return first
	}
	ends := append([]MessageEnds{}, counts.MessagesBefore(first.Number)...)
	if len(ends) > maxEnds {
		ends = nil // there are too many
	}
	mine, err := json.Marshal(ends)
	if err != nil {
		return errors.Join(first, err)
	}
	got, err := g.exchangeReports(context.Background(), mine)
	if err != nil {
		return errors.Join(first, err)
	}
	var all []MessageEnds
	complete := true
	for _, m := range got {
		var theirs []MessageEnds
		complete = complete && json.Unmarshal(m, &theirs) == nil && theirs != nil
		all = append(all, theirs...)
	}
	merged := *first
	merged.Ends = nil
	if complete {
		merged.Ends = unmatched(all)
	}
	return &merged
}
