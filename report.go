package symmem

import (
	"errors"
	"slices"
	"time"

	"symmem/driver"
)

// report is what a rank sends to the others about its fault.
type report struct {
	Kind     string         `json:"kind"`
	Doing    string         `json:"doing"`
	Waited   time.Duration  `json:"waited"`
	Ranks    []int          `json:"ranks"`
	Activity map[int]string `json:"activity"`
	Members  []int          `json:"members,omitempty"`
	Counts   string         `json:"counts,omitempty"` // of a TimeoutError
	Text     string         `json:"text"`
	// Interrupted reports whether the caller of a rank wanted its wait to end.
	Interrupted bool `json:"interrupted,omitempty"`
	// Divergence is the error itself, where it is one.
	Divergence *DivergenceError `json:"divergence,omitempty"`
	// Messages is the error itself, where it is about messages.
	Messages *MessageError `json:"messages,omitempty"`
	// Rank is the world rank of a PriorError, and Cause what had failed there. Pending reports whether
	// the rank does not know the cause for sure yet.
	Rank    int     `json:"rank"`
	Cause   *report `json:"cause,omitempty"`
	Pending bool    `json:"pending,omitempty"`
	from    int     // the world rank whose report it is
}

// The kinds of a report, in the order in which one explains the others: a rank that is lost makes
// others late, a stream that had failed before leaves them without a rank, as does a rank that
// closes its Runtime while a group is made, and a divergence makes them wait in different places.
const (
	kindLost     = "lost"
	kindPrior    = "prior"
	kindClosed   = "closed"
	kindDiverged = "diverged"
	kindMessages = "messages"
	kindLate     = "late"
	kindAborted  = "aborted"
	kindPeer     = "peer"
	kindOther    = "other"
)

// reportOf makes the report of an error. A PriorError comes first, since it holds another one.
func reportOf(cause error) report {
	var prior *PriorError
	if errors.As(cause, &prior) {
		first := reportOf(prior.Cause)
		return report{Kind: kindPrior, Doing: prior.Doing, Rank: prior.Rank, Cause: &first}
	}
	var lost *driver.RankLostError
	var late *driver.TimeoutError
	var mismatch *driver.MismatchError
	var deadlock *driver.DeadlockError
	var diverged *DivergenceError
	var peer *driver.PeerError
	var messages *MessageError
	switch {
	case errors.As(cause, &lost):
		return report{Kind: kindLost, Doing: lost.Doing, Ranks: lost.Ranks, Members: lost.Members}
	case errors.As(cause, &diverged):
		return report{Kind: kindDiverged, Doing: "agreement", Divergence: diverged}
	case errors.As(cause, &mismatch):
		return report{Kind: kindDiverged, Doing: mismatch.Error()}
	case errors.As(cause, &deadlock):
		return report{
			Kind: kindDiverged, Doing: deadlock.Doing, Activity: deadlock.Elsewhere,
			Members: deadlock.Members,
		}
	case errors.As(cause, &messages):
		shortened := *messages
		shortened.Ends = shortened.Ends[:min(len(shortened.Ends), maxEnds)]
		return report{Kind: kindMessages, Messages: &shortened}
	case errors.As(cause, &late):
		return report{
			Kind: kindLate, Doing: late.Doing, Waited: late.Waited, Ranks: late.Missing,
			Activity: late.Activity, Members: late.Members, Counts: late.Counts,
		}
	case errors.Is(cause, driver.ErrClosed):
		return report{Kind: kindClosed, Text: cause.Error()}
	case errors.As(cause, &peer) && peer.Aborted:
		return report{Kind: kindAborted, Ranks: peer.Ranks, Text: cause.Error()}
	case errors.Is(cause, driver.ErrAborted):
		return report{Kind: kindAborted, Text: cause.Error()}
	case errors.Is(cause, driver.ErrInterrupted):
		return report{Kind: kindAborted, Text: cause.Error(), Interrupted: true}
	case errors.As(cause, &peer):
		return report{Kind: kindPeer, Doing: peer.Doing, Ranks: peer.Ranks, Members: peer.Members}
	default:
		return report{Kind: kindOther, Text: cause.Error()}
	}
}

// merge joins the ranks that reports name. The text of the error comes from the first report, by
// rank, so that it is the same on all ranks.
func merge(reports []report) (first report, ranks []int, activity map[int]string) {
	activity = map[int]string{}
	for _, r := range reports {
		ranks = append(ranks, r.Ranks...)
		for rank, doing := range r.Activity {
			activity[rank] = doing
		}
	}
	slices.Sort(ranks)
	return reports[0], slices.Compact(ranks), activity
}

// firstCounts is what NCCL has counted, from the first report that has it: all ranks ask for the
// same counts.
func firstCounts(reports []report) string {
	for _, r := range reports {
		if r.Counts != "" {
			return r.Counts
		}
	}
	return ""
}

// addWaits adds to the activity of ranks that are late what they wait for themselves, as far as
// they have reported it.
func addWaits(reports []report, late []int, activity map[int]string) {
	for _, r := range reports {
		if slices.Contains(late, r.from) {
			activity[r.from] = "waits in " + r.Doing
			if len(r.Ranks) > 0 {
				activity[r.from] += ", for " + driver.Ranks(r.Ranks)
			}
		}
	}
}

// valid reports whether a report has what its kind needs. It comes from another process.
func (r *report) valid() bool {
	switch r.Kind {
	case kindPrior:
		return r.Cause != nil && r.Cause.valid()
	case kindMessages:
		return r.Messages != nil
	}
	return true
}

// err is the error that a report was made of, as far as a report holds it.
func (r *report) err() error {
	switch r.Kind {
	case kindLost:
		return &RankLostError{Ranks: r.Ranks, Doing: r.Doing, Members: r.Members}
	case kindLate:
		return &TimeoutError{
			Doing: r.Doing, Waited: r.Waited, Missing: r.Ranks, Activity: r.Activity,
			Members: r.Members, Counts: r.Counts,
		}
	case kindPeer:
		return &PeerError{Doing: r.Doing, Ranks: r.Ranks, Members: r.Members}
	case kindAborted:
		return &peerReportError{text: r.Text, is: ErrAborted}
	case kindPrior:
		return &PriorError{Doing: r.Doing, Rank: r.Rank, Cause: r.Cause.err()}
	case kindMessages:
		if r.Messages != nil {
			return r.Messages
		}
	case kindDiverged:
		if r.Divergence != nil {
			return r.Divergence
		}
		if len(r.Activity) > 0 {
			return &driver.DeadlockError{Doing: r.Doing, Elsewhere: r.Activity, Members: r.Members}
		}
	}
	if r.Text == "" {
		return errors.New(r.Doing)
	}
	return errors.New(r.Text)
}

// peerReportError is the error of another rank, with its text.
type peerReportError struct {
	text string
	is   error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Is(target error) bool { return target == e.is }
