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
)

// inquiry determines, together with the other ranks, why a group has failed. Each rank reports what
// it has seen. From the reports, some rank selects a cause, on which all ranks then agree.
type inquiry struct {
	roster
	comm       driver.Communicator
	life       *lifetime
	comparison *comparison
	aligner    *aligner
	calls      *planner
	values     *values
}

// reportTimeout limits one exchange of reports. So do three quarters of the group's timeout.
const reportTimeout = 2 * time.Second

// maxReportRounds limits how often ranks exchange reports while some rank does not know the cause.
const maxReportRounds = 12

// run returns the same error on all ranks. cause is the error that this rank has seen. A rank that
// calls run late adds its side to a divergence. The exchange is repeated while a rank does not know
// the cause of an earlier fault of another group.
func (inq *inquiry) run(cause error) error {
	begin := time.Now()
	wait := time.Duration(0) // in the first round, do not wait for another group
	for round := 0; ; round++ {
		own := inq.makeReport(cause, wait)
		own.Suspect = inq.aligner.hasSuspectPools()
		message, err := json.Marshal(own)
		if err != nil {
			return errors.Join(cause, err)
		}

		payloads, err := inq.exchangeReports(context.Background(), message)
		if err != nil {
			return errors.Join(cause, err)
		}

		all := inq.decodeReports(payloads)
		decision := inq.comm.Decide(nil) // asks without a proposal
		if decision != nil {
			return inq.adopt(cause, decision)
		}

		if !all.pending || round == maxReportRounds {
			inq.awaitDecision(all, begin)
			selected := inq.selectCause(cause, all)
			return inq.decide(selected)
		}

		wait = reportTimeout / 4
	}
}

// makeReport returns this rank's report about a cause. If the cause is an earlier fault of another
// group, it waits until the ranks of that group agree on their cause. After wait, it returns a
// pending report, which does not contain the final cause.
func (inq *inquiry) makeReport(cause error, wait time.Duration) report {
	var prior *PriorError
	if !errors.As(cause, &prior) {
		return reportOf(cause)
	}

	source := lifetimeOf(prior.Cause) // the other group
	if source == nil || source == inq.life {
		return reportOf(cause)
	}

	timer := time.NewTimer(wait)
	defer timer.Stop()
	earlierCause := prior.Cause
	isPending := false
	select {
	case <-source.ctx.Done():
		earlierCause = context.Cause(source.ctx)
	case <-timer.C:
		isPending = true
	}

	r := reportOf(&PriorError{InCall: prior.InCall, Rank: prior.Rank, Cause: earlierCause})
	r.Pending = isPending
	return r
}

// reports contains the reports of all ranks.
type reports struct {
	byKind       map[string][]report // in the order of group ranks
	pending      bool                // some report is pending
	callUnknown  bool                // some report names no call
	suspect      bool                // another group's fault affects a pool of some rank
	missingRanks []int               // world ranks without a report
	// awaitDecision sets lostRanks and leftRanks: the missing ranks that are lost, and those that
	// have left the group. It also sets waited: how long it has waited.
	lostRanks, leftRanks []int
	waited               time.Duration
}

// decodeReports decodes the reports of all ranks. Ranks without a valid report are missing.
func (inq *inquiry) decodeReports(payloads [][]byte) *reports {
	all := &reports{byKind: map[string][]report{}}
	for groupRank, payload := range payloads {
		r := report{sender: inq.ranks[groupRank]}
		decodeErr := json.Unmarshal(payload, &r)
		if decodeErr != nil || !r.hasRequiredFields() {
			all.missingRanks = append(all.missingRanks, r.sender)
			continue
		}

		all.byKind[r.Kind] = append(all.byKind[r.Kind], r)
		all.pending = all.pending || r.Pending
		all.suspect = all.suspect || r.Suspect
		all.callUnknown = all.callUnknown || r.InCall == ""
	}

	return all
}

// exchangeReports is an agreement.Exchange on the lane for faults, which works after a fault.
func (inq *inquiry) exchangeReports(ctx context.Context, payload []byte) ([][]byte, error) {
	timeout := min(reportTimeout, inq.limit.Get()*3/4)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return inq.comm.Exchange(ctx, driver.LaneFault, payload)
}

// selectCause selects a cause from the reports. It prefers causes to their possible consequences,
// in the order of the kinds in report.go. If no report names a cause, it returns that of this rank.
func (inq *inquiry) selectCause(cause error, all *reports) error {
	byKind := all.byKind
	switch {
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
		return inq.divergedCause(cause, all)
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
		return inq.missingCause(cause, all)
	default:
		return cause
	}
}

// missingCause returns an error about the ranks whose reports are missing.
func (inq *inquiry) missingCause(cause error, all *reports) error {
	activity := map[int]string{}
	for _, rank := range all.leftRanks {
		activity[rank] = "has left the group without a report of its fault"
	}

	lateRanks := difference(all.missingRanks, all.leftRanks)
	if len(lateRanks) > 0 {
		return &TimeoutError{
			InCall: "finding out why group " + inq.id + " failed", Waited: all.waited,
			Missing: lateRanks, Activity: activity, Members: inq.ranks,
		}
	}

	return &DeadlockError{InCall: reportOf(cause).InCall, Activity: activity, Members: inq.ranks}
}

// difference returns the elements of ranks that others does not contain.
func difference(ranks, others []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool {
		return slices.Contains(others, r)
	})
}

// addAdvice adds what to do if a rank has a suspect pool, whose layout may differ between ranks. At
// the next call that uses the pool, this rank waits for the others, in order to realign it.
func (all *reports) addAdvice(err error) error {
	if !all.suspect {
		return err
	}

	return fmt.Errorf("%w; a rank has seen the fault of another group and realigns the pools at the "+
		"next call that uses them: let all ranks of a pool see the fault first (Synchronize, Cause or "+
		"Close of the failed group), or call Check or Split on a group of these ranks", err)
}

// mergeLost merges reports of lost ranks.
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

// mergeLate merges reports of late ranks. It takes texts from the lowest rank that lists missing
// ranks. If some of the missing ranks are silent (have sent no report), it lists only these: the
// others may have been late because they waited for a silent rank.
func (inq *inquiry) mergeLate(reports []report, silentRanks []int) *TimeoutError {
	firstIndex := slices.IndexFunc(reports, func(r report) bool { return len(r.Late.Missing) > 0 })
	first := reports[max(firstIndex, 0)] // if none lists missing ranks, the first report
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
	answered := difference(e.Missing, silentRanks)
	areSomeSilent := len(answered) < len(e.Missing)
	if areSomeSilent {
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

// distinct returns sorted ranks without duplicates.
func distinct(ranks []int) []int { return slices.Compact(slices.Sorted(slices.Values(ranks))) }

// abortedError returns an ErrAborted that names the ranks that have aborted.
func (inq *inquiry) abortedError(reports []report) error {
	var ranks []int
	why := ""
	for _, r := range reports {
		hasPeers := r.Peer != nil && len(r.Peer.Ranks) > 0 // another rank has aborted
		if hasPeers {
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

// messageCause explains a mismatch of messages. If Sends or Recvs lack a partner, the ranks
// exchange their counts of messages, to find out which.
func (inq *inquiry) messageCause(reports []report) error {
	first := reports[0].Messages
	counts, canCount := inq.comm.(driver.MessageCounts)
	hasCounts := canCount && first.Fault == driver.MessagesUnmatched && first.Number != 0
	if !hasCounts {
		return first
	}

	ends := append([]MessageEnds{}, counts.MessagesBefore(first.Number)...) // not nil
	if len(ends) > maxMessageEnds {
		ends = nil // too many for one exchange
	}

	encoded, err := json.Marshal(ends)
	if err != nil {
		return errors.Join(first, err)
	}

	payloads, err := inq.exchangeReports(context.Background(), encoded)
	if err != nil {
		return errors.Join(first, err)
	}

	var all []MessageEnds
	isComplete := true
	for _, payload := range payloads {
		var peerEnds []MessageEnds
		decodeErr := json.Unmarshal(payload, &peerEnds)
		if decodeErr != nil || peerEnds == nil {
			isComplete = false
		}

		all = append(all, peerEnds...)
	}

	merged := *first
	merged.Ends = nil
	if isComplete {
		merged.Ends = unmatchedPairs(all)
	}

	return &merged
}
