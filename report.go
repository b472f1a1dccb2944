package symmem

import (
	"cmp"
	"errors"

	"symmem/driver"
)

// report describes a fault for the other ranks of the group.
type report struct {
	Kind   string `json:"kind"`
	InCall string `json:"doing"`
	// Only the field for the type of the error is set, or Text if there is no such field.
	Lost       *RankLostError   `json:"lost,omitempty"`
	Late       *TimeoutError    `json:"late,omitempty"`
	Deadlock   *DeadlockError   `json:"deadlock,omitempty"`
	Divergence *DivergenceError `json:"divergence,omitempty"`
	Messages   *MessageError    `json:"messages,omitempty"`
	Peer       *PeerError       `json:"peer,omitempty"`
	// Mismatch is sent without its Call; InCall contains the text of the call.
	Mismatch *driver.MismatchError `json:"mismatch,omitempty"`
	Text     string                `json:"text,omitempty"`
	// Interrupted reports whether Options.Interrupted ended the rank's wait.
	Interrupted bool `json:"interrupted,omitempty"`
	// Rank is the world rank that a PriorError names.
	Rank int `json:"rank"`
	// Cause describes the earlier failure on Rank.
	Cause *report `json:"cause,omitempty"`
	// Pending reports whether the rank has yet to determine the cause.
	Pending bool `json:"pending,omitempty"`
	// Suspect reports whether the rank has marked a pool suspect after a fault of another group.
	Suspect bool `json:"suspect,omitempty"`
	from    int  // the world rank that sent the report
}

// The kinds of reports, ordered so that a kind may be the cause of later ones. For example, ranks
// may be late because another rank is lost.
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

// reportOf returns the report of an error. It checks for a PriorError first, because a PriorError
// wraps other errors.
func reportOf(cause error) report {
	var priorErr *PriorError
	if errors.As(cause, &priorErr) {
		earlier := reportOf(priorErr.Cause)
		return report{Kind: kindPrior, InCall: priorErr.InCall, Rank: priorErr.Rank, Cause: &earlier}
	}
	var r report
	var mismatch *driver.MismatchError
	switch {
	case errors.As(cause, &r.Lost):
		r.Kind, r.InCall = kindLost, r.Lost.InCall
	case errors.As(cause, &r.Divergence):
		r.Kind, r.InCall = kindDiverged, "agreement"
	case errors.As(cause, &mismatch):
		shortened := *mismatch
		shortened.Call = nil
		r.Kind, r.InCall, r.Mismatch = kindDiverged, mismatch.Error(), &shortened
	case errors.As(cause, &r.Deadlock):
		r.Kind, r.InCall = kindDiverged, r.Deadlock.InCall
	case errors.As(cause, &r.Messages):
		shortened := *r.Messages
		shortened.Ends = shortened.Ends[:min(len(shortened.Ends), maxEnds)]
		r.Kind, r.Messages = kindMessages, &shortened
	case errors.As(cause, &r.Late):
		r.Kind, r.InCall = kindLate, r.Late.InCall
	case errors.Is(cause, driver.ErrClosed):
		r.Kind, r.Text = kindClosed, cause.Error()
	case errors.Is(cause, driver.ErrAborted):
		r.Kind, r.Text = kindAborted, cause.Error()
		errors.As(cause, &r.Peer) // names the ranks that have aborted, if known
	case errors.Is(cause, driver.ErrInterrupted):
		r.Kind, r.Text, r.Interrupted = kindAborted, cause.Error(), true
	case errors.As(cause, &r.Peer):
		r.Kind, r.InCall = kindPeer, r.Peer.InCall
	default:
		r.Kind, r.Text = kindOther, cause.Error()
	}
	return r
}

// valid checks that a report from another process has the fields that its kind requires.
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
		return &peerReportError{text: r.Text, err: ErrAborted}
	case kindPrior:
		return &PriorError{InCall: r.InCall, Rank: r.Rank, Cause: r.Cause.err()}
	case kindDiverged:
		if r.Divergence != nil {
			return r.Divergence
		}
		if r.Deadlock != nil {
			return r.Deadlock
		}
		if r.Mismatch != nil {
			return &peerReportError{text: r.InCall, err: r.Mismatch}
		}
	}
	return errors.New(cmp.Or(r.Text, r.InCall))
}

// peerReportError is an error of another rank. It has the text of the original error and wraps the
// part that could be encoded.
type peerReportError struct {
	text string
	err  error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Unwrap() error { return e.err }
