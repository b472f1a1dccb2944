package symmem

import (
	"cmp"
	"errors"

	"symmem/driver"
)

// report describes a fault for the other ranks of the group.
type report struct {
	Kind string `json:"kind"`
	// Doing names the call in which the rank was, if that is known.
	Doing string `json:"doing"`
	// One of these holds an error of its type. For any other error, Text has its text.
	Lost       *RankLostError   `json:"lost,omitempty"`
	Late       *TimeoutError    `json:"late,omitempty"`
	Deadlock   *DeadlockError   `json:"deadlock,omitempty"`
	Divergence *DivergenceError `json:"divergence,omitempty"`
	Messages   *MessageError    `json:"messages,omitempty"`
	Peer       *PeerError       `json:"peer,omitempty"`
	Text       string           `json:"text,omitempty"`
	// Interrupted reports whether the rank's caller interrupted its wait.
	Interrupted bool `json:"interrupted,omitempty"`
	// Rank is the world rank of a PriorError, and Cause what had failed there. Pending reports whether
	// the rank does not know the cause for sure yet.
	Rank    int     `json:"rank"`
	Cause   *report `json:"cause,omitempty"`
	Pending bool    `json:"pending,omitempty"`
	// Suspect reports whether the rank has marked a pool suspect since a fault of another group.
	Suspect bool `json:"suspect,omitempty"`
	from    int  // the world rank whose report it is
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

// reportOf returns the report of an error. It checks for a PriorError first, since that wraps
// others.
func reportOf(cause error) report {
	var prior *PriorError
	if errors.As(cause, &prior) {
		first := reportOf(prior.Cause)
		return report{Kind: kindPrior, Doing: prior.Doing, Rank: prior.Rank, Cause: &first}
	}
	var r report
	var mismatch *driver.MismatchError
	switch {
	case errors.As(cause, &r.Lost):
		r.Kind, r.Doing = kindLost, r.Lost.Doing
	case errors.As(cause, &r.Divergence):
		r.Kind, r.Doing = kindDiverged, "agreement"
	case errors.As(cause, &mismatch):
		r.Kind, r.Doing = kindDiverged, mismatch.Error()
	case errors.As(cause, &r.Deadlock):
		r.Kind, r.Doing = kindDiverged, r.Deadlock.Doing
	case errors.As(cause, &r.Messages):
		shortened := *r.Messages
		shortened.Ends = shortened.Ends[:min(len(shortened.Ends), maxEnds)]
		r.Kind, r.Messages = kindMessages, &shortened
	case errors.As(cause, &r.Late):
		r.Kind, r.Doing = kindLate, r.Late.Doing
	case errors.Is(cause, driver.ErrClosed):
		r.Kind, r.Text = kindClosed, cause.Error()
	case errors.Is(cause, driver.ErrAborted):
		r.Kind, r.Text = kindAborted, cause.Error()
		errors.As(cause, &r.Peer) // names the ranks that have aborted, if known
	case errors.Is(cause, driver.ErrInterrupted):
		r.Kind, r.Text, r.Interrupted = kindAborted, cause.Error(), true
	case errors.As(cause, &r.Peer):
		r.Kind, r.Doing = kindPeer, r.Peer.Doing
	default:
		r.Kind, r.Text = kindOther, cause.Error()
	}
	return r
}

// valid reports whether a report of another process has the fields that its kind requires.
func (r *report) valid() bool {
	switch r.Kind {
	case kindPrior:
		return r.Cause != nil && r.Cause.valid()
	case kindLost:
		return r.Lost != nil
	case kindLate:
		return r.Late != nil
	case kindMessages:
		return r.Messages != nil
	case kindPeer:
		return r.Peer != nil
	}
	return true
}

// err returns the reported error, or one with its text.
func (r *report) err() error {
	switch r.Kind {
	case kindLost:
		return r.Lost
	case kindLate:
		return r.Late
	case kindMessages:
		return r.Messages
	case kindPeer:
		return r.Peer
	case kindAborted:
		return &peerReportError{text: r.Text, is: ErrAborted}
	case kindPrior:
		return &PriorError{Doing: r.Doing, Rank: r.Rank, Cause: r.Cause.err()}
	case kindDiverged:
		if r.Divergence != nil {
			return r.Divergence
		}
		if r.Deadlock != nil {
			return r.Deadlock
		}
	}
	return errors.New(cmp.Or(r.Text, r.Doing))
}

// peerReportError stands for the error of another rank.
type peerReportError struct {
	text string
	is   error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Is(target error) bool { return target == e.is }
