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
)

// inquiry determines, together with the other ranks, why a group has failed.
type inquiry struct {
	roster
	comm       driver.Communicator
	life       *lifetime
	comparison *comparison
	aligner    *aligner
	calls      *planner
	values     *values
}

// reportTimeout limits one exchange of reports, as do three quarters of the group's timeout.
const reportTimeout = 2 * time.Second

const maxReportRounds = 12

// run returns the same error on all ranks. A rank that calls it late adds its side to a divergence.
// The exchange is repeated while a rank does not know the cause of an earlier fault of another
// group.
func (inq *inquiry) run(cause error) error {
	begin := time.Now()
	for round := 0; ; round++ {
		local := inq.makeReport(cause, time.Duration(min(round, 1))*reportTimeout/4)
		local.Suspect = inq.aligner.hasSuspectPools()
		message, err := json.Marshal(local)
		if err != nil {
			return errors.Join(cause, err)
		}
		payloads, err := inq.exchangeReports(context.Background(), message)
		if err != nil {
			return errors.Join(cause, err)
		}
		all := inq.decodeReports(payloads)
		if decision := inq.comm.Decide(nil); decision != nil {
			return inq.adopt(cause, decision)
		}
		if !all.pending || round == maxReportRounds {
			inq.awaitReports(all, begin)
			return inq.decide(inq.selectCause(cause, all))
		}
	}
}

// makeReport waits for the cause of an earlier fault of another group. After wait, it returns a
// pending report.
func (inq *inquiry) makeReport(cause error, wait time.Duration) report {
	var prior *PriorError
	if !errors.As(cause, &prior) {
		return reportOf(cause)
	}
	first := prior.Cause
	source := lifetimeOf(first)
	if source == nil || source == inq.life {
		return reportOf(cause)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	pending := false
	select {
	case <-source.ctx.Done():
		first = context.Cause(source.ctx)
	case <-timer.C:
		pending = true
	}
	r := reportOf(&PriorError{InCall: prior.InCall, Rank: prior.Rank, Cause: first})
	r.Pending = pending
	return r
}

type reports struct {
	byKind       map[string][]report
	pending      bool  // on some rank
	callUnknown  bool  // on some rank
	suspect      bool  // another group's fault affects a pool of some rank
	missingRanks []int // world ranks without a report
	// awaitReports sets these: missing ranks that are lost or have left, and the time of waiting.
	lostRanks, leftRanks []int
	waited               time.Duration
}

func (inq *inquiry) decodeReports(payloads [][]byte) *reports {
	all := &reports{byKind: map[string][]report{}}
	for rank, payload := range payloads {
		r := report{sender: inq.ranks[rank]}
		if json.Unmarshal(payload, &r) != nil || !r.hasRequiredFields() {
			all.missingRanks = append(all.missingRanks, inq.ranks[rank])
			continue
		}
		all.byKind[r.Kind] = append(all.byKind[r.Kind], r)
		all.pending = all.pending || r.Pending
		all.suspect = all.suspect || r.Suspect
		all.callUnknown = all.callUnknown || r.InCall == ""
	}
	return all
}

func (inq *inquiry) exchangeReports(ctx context.Context, payload []byte) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, min(reportTimeout, inq.limit.Get()*3/4))
	defer cancel()
	return inq.comm.Exchange(ctx, driver.LaneFault, payload)
}

// selectCause uses the order of the kinds in report.go. Without a report of a cause, it returns
// this rank's.
func (inq *inquiry) selectCause(cause error, all *reports) error {
	switch byKind := all.byKind; {
	case len(byKind[kindLost]) > 0:
		return inq.mergeLost(byKind[kindLost])
	case len(byKind[kindPrior]) > 0:
		return byKind[kindPrior][0].toError()
	case len(byKind[kindClosed]) > 0:
		elsewhere := map[int]string{}
		for _, r := range byKind[kindClosed] {
			elsewhere[r.sender] = "has closed its Runtime in the meantime"
		}
		return &DeadlockError{
			InCall: "joining group " + inq.id, Activity: elsewhere, Members: inq.ranks,
		}
	case len(byKind[kindDiverged]) > 0:
		everywhere := !all.callUnknown && len(all.missingRanks) == 0
		if err := inq.explainDivergence(cause, everywhere, all.suspect); !errors.Is(err, cause) {
			return all.addAdvice(all.completeDivergence(err))
		}
		// The histories are the same, so report where each rank is: one may have left the group.
		elsewhere := map[int]string{}
		for _, r := range byKind[kindDiverged] {
			if r.Deadlock != nil {
				maps.Copy(elsewhere, r.Deadlock.Activity)
			}
		}
		switch {
		case len(elsewhere) > 0 && len(all.lostRanks) > 0:
			return &RankLostError{
				Ranks: all.lostRanks, InCall: byKind[kindDiverged][0].InCall, Members: inq.ranks,
			}
		case len(elsewhere) > 0:
			return all.addAdvice(&DeadlockError{
				InCall: byKind[kindDiverged][0].InCall, Activity: elsewhere, Members: inq.ranks,
			})
		}
	case len(byKind[kindMessages]) > 0:
		return inq.messageCause(byKind[kindMessages])
	case len(all.lostRanks) > 0:
		return &RankLostError{Ranks: all.lostRanks, InCall: reportOf(cause).InCall, Members: inq.ranks}
	case len(byKind[kindLate]) > 0:
		return all.addAdvice(inq.mergeLate(byKind[kindLate], all.missingRanks))
	case len(byKind[kindAborted]) > 0:
		return inq.abortedError(byKind[kindAborted])
	case len(byKind[kindOther]) > 0:
		first := byKind[kindOther][0]
		return fmt.Errorf("group %s failed on %s: %s", inq.id,
			driver.RanksOf([]int{first.sender}, inq.ranks), first.Text)
	case len(all.missingRanks) > 0:
		return inq.unexplained(cause, all)
	}
	return cause
}

// unexplained is for ranks whose reports are missing.
func (inq *inquiry) unexplained(cause error, all *reports) error {
	activity := map[int]string{}
	for _, rank := range all.leftRanks {
		activity[rank] = "has left the group without a report of its fault"
	}
	if late := difference(all.missingRanks, all.leftRanks); len(late) > 0 {
		return &TimeoutError{
			InCall: "finding out why group " + inq.id + " failed", Waited: all.waited, Missing: late,
			Activity: activity, Members: inq.ranks,
		}
	}
	return &DeadlockError{InCall: reportOf(cause).InCall, Activity: activity, Members: inq.ranks}
}

func difference(ranks, others []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool {
		return slices.Contains(others, r)
	})
}

func (all *reports) addAdvice(err error) error {
	if !all.suspect {
		return err
	}
	return fmt.Errorf("%w; a rank has seen the fault of another group and realigns the pools at the "+
		"next call that uses them: let all ranks of a pool see the fault first (Synchronize, Cause or "+
		"Close of the failed group), or call Check or Split on a group of these ranks", err)
}

func (inq *inquiry) mergeLost(reports []report) *RankLostError {
	e := &RankLostError{
		InCall: reports[0].InCall, Machines: map[int]string{}, Members: inq.ranks,
	}
	for _, r := range reports {
		e.Ranks = append(e.Ranks, r.Lost.Ranks...)
		maps.Copy(e.Machines, r.Lost.Machines)
	}
	e.Ranks = distinct(e.Ranks)
	return e
}

// mergeLate takes texts from the lowest rank that lists missing ranks, so that all ranks get the
// same result. If some of the missing ranks are silent (have sent no report), it lists only these:
// the others may have been late because they waited for a silent rank.
func (inq *inquiry) mergeLate(reports []report, silentRanks []int) *TimeoutError {
	first := reports[max(0, slices.IndexFunc(reports, func(r report) bool {
		return len(r.Late.Missing) > 0
	}))]
	e := &TimeoutError{
		InCall: first.InCall, Waited: first.Late.Waited, Activity: map[int]string{},
		Machines: map[int]string{}, Members: inq.ranks,
	}
	for _, r := range reports {
		e.Missing = append(e.Missing, r.Late.Missing...)
		maps.Copy(e.Machines, r.Late.Machines)
		maps.Copy(e.Activity, r.Late.Activity)
		e.Counts = cmp.Or(e.Counts, r.Late.Counts)
	}
	e.Missing = distinct(e.Missing)
	if answered := difference(e.Missing, silentRanks); len(answered) < len(e.Missing) {
		e.Missing = difference(e.Missing, answered)
	}
	for _, r := range reports {
		switch {
		case r.Late.Activity[r.sender] != "": // it had no time to wait
			e.Activity[r.sender] = r.Late.Activity[r.sender]
		case slices.Contains(e.Missing, r.sender):
			e.Activity[r.sender] = "waits in " + r.InCall
			if len(r.Late.Missing) > 0 {
				e.Activity[r.sender] += ", for " + driver.Ranks(r.Late.Missing)
			}
		}
	}
	return e
}

func distinct(ranks []int) []int { return slices.Compact(slices.Sorted(slices.Values(ranks))) }

func (inq *inquiry) abortedError(reports []report) error {
	var ranks []int
	why := ""
	for _, r := range reports {
		if r.Peer != nil && len(r.Peer.Ranks) > 0 {
			ranks = append(ranks, r.Peer.Ranks...)
			continue
		}
		ranks = append(ranks, r.sender)
		if r.Interrupted {
			why = ": " + r.Text
		}
	}
	return fmt.Errorf("group %s: %w by %s%s", inq.id, ErrAborted,
		driver.RanksOf(distinct(ranks), inq.ranks), why)
}

// comparableLedgers returns none if a pool is suspect, because histories may then differ in a
// correct program.
func (inq *inquiry) comparableLedgers(
	mode agreement.Mode, suspect bool,
) ([]agreement.Ledger, error) {
	if suspect {
		return nil, nil
	}
	if mode == agreement.ModePrefix {
		return inq.comparison.sharedHistories(context.Background(), inq.exchangeReports)
	}
	return inq.comparison.histories(), nil
}

// explainDivergence compares the histories of the pools, the current collective and, if everywhere
// is true, the calls that the ranks are in. Without a difference, it returns cause.
func (inq *inquiry) explainDivergence(cause error, everywhere, suspect bool) error {
	comparisons := []agreement.Config{
		inq.callComparison(cause),
		// The ranks wait for each other, so an event that only some have reached is a difference.
		{Mode: agreement.ModeExact},
	}
	if everywhere {
		comparisons = append(comparisons,
			agreement.Config{Mode: agreement.ModeExact, Tag: inq.describeCall(cause)})
	}
	var err error
	for _, c := range comparisons {
		if c.Ledgers, err = inq.comparableLedgers(c.Mode, suspect); err != nil {
			return errors.Join(cause, err)
		}
		outcome, err := inq.comparison.run(context.Background(), inq.exchangeReports, c)
		if err != nil && c.CallDiffers {
			outcome, err = inq.comparison.run(context.Background(), inq.ownPayload, c)
		}
		if err != nil {
			return errors.Join(cause, err)
		}
		if err := inq.divergence(outcome); err != nil {
			return err
		}
	}
	return cause
}

// messageCause merges the ranks' counts of messages after a mismatch.
func (inq *inquiry) messageCause(reports []report) error {
	first := reports[0].Messages
	counts, ok := inq.comm.(driver.MessageCounts)
	if first.Fault != driver.MessagesUnmatched || first.Number == 0 || !ok {
		return first
	}
	ends := append([]MessageEnds{}, counts.MessagesBefore(first.Number)...)
	if len(ends) > maxEnds {
		ends = nil // too many for one exchange
	}
	local, err := json.Marshal(ends)
	if err != nil {
		return errors.Join(first, err)
	}
	payloads, err := inq.exchangeReports(context.Background(), local)
	if err != nil {
		return errors.Join(first, err)
	}
	var all []MessageEnds
	complete := true
	for _, payload := range payloads {
		var peerEnds []MessageEnds
		complete = complete && json.Unmarshal(payload, &peerEnds) == nil && peerEnds != nil
		all = append(all, peerEnds...)
	}
	merged := *first
	merged.Ends = nil
	if complete {
		merged.Ends = unmatchedPairs(all)
	}
	return &merged
}
