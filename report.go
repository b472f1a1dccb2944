package symmem

import (
	"cmp"
	"errors"

	"symmem/driver"
)

// report describes the failure of a group, for the other ranks. The ranks exchange reports to agree
// on one cause.
type report struct {
	Kind string `json:"kind"` // one of the constants below
	// InCall describes the failed call, or contains the text of a MismatchError.
	InCall string `json:"doing"`
	// Of the fields from Lost to Text, the one that fits the type of the error is set.
	Lost       *RankLostError   `json:"lost,omitempty"`
	Late       *TimeoutError    `json:"late,omitempty"`
	Deadlock   *DeadlockError   `json:"deadlock,omitempty"`
	Divergence *DivergenceError `json:"divergence,omitempty"`
	Messages   *MessageError    `json:"messages,omitempty"`
	Peer       *PeerError       `json:"peer,omitempty"`
	// Mismatch is the MismatchError without its Call.
	Mismatch *driver.MismatchError `json:"mismatch,omitempty"`
	Text     string                `json:"text,omitempty"`
	// Interrupted is set if Options.Interrupted has ended a wait.
	Interrupted bool `json:"interrupted,omitempty"`
	// Rank and Cause describe the earlier failure of a PriorError, and the rank that had it.
	Rank  int     `json:"rank"`
	Cause *report `json:"cause,omitempty"`
	// Pending is set while the rank does not know the cause.
	Pending bool `json:"pending,omitempty"`
	// Suspect is set if a pool's layout may differ between ranks after another group's failure.
	Suspect bool `json:"suspect,omitempty"`
	sender  int  // world rank; set by the receiver
}

// The kinds of reports. Causes come before their possible consequences: a lost rank can make other
// ranks late.
const (
	kindLost     = "lost"     // the process of a rank has ended, or has closed its Runtime
	kindPrior    = "prior"    // a call was skipped after an earlier failure
	kindClosed   = "closed"   // the rank has left the group
	kindDiverged = "diverged" // ranks made different calls or requests
	kindMessages = "messages" // Sends and Recvs do not match
	kindLate     = "late"     // a timeout
	kindAborted  = "aborted"  // a call of Abort, or an interrupted wait
	kindPeer     = "peer"     // other ranks have failed first
	kindOther    = "other"
)

// reportOf returns the report about a cause.
func reportOf(cause error) report {
	var priorErr *PriorError
	if errors.As(cause, &priorErr) { // first, because a PriorError wraps errors of other kinds
		earlier := reportOf(priorErr.Cause)
		return report{
			Kind: kindPrior, InCall: priorErr.InCall, Rank: priorErr.Rank, Cause: &earlier,
		}
	}

	var r report
	var mismatch *driver.MismatchError
	// An error can match several cases, so their order matters. errors.As sets the field of r.
	switch {
	case errors.As(cause, &r.Lost):
		r.Kind, r.InCall = kindLost, r.Lost.InCall
	case errors.As(cause, &r.Divergence):
		r.Kind, r.InCall = kindDiverged, "agreement"
	case errors.As(cause, &mismatch):
		withoutCall := *mismatch
		withoutCall.Call = nil
		r.Kind, r.InCall, r.Mismatch = kindDiverged, mismatch.Error(), &withoutCall
	case errors.As(cause, &r.Deadlock):
		r.Kind, r.InCall = kindDiverged, r.Deadlock.InCall
	case errors.As(cause, &r.Messages):
		shortened := *r.Messages // must fit into a message of the exchange
		shortened.Ends = shortened.Ends[:min(len(shortened.Ends), maxEnds)]
		r.Kind, r.Messages = kindMessages, &shortened
	case errors.As(cause, &r.Late):
		r.Kind, r.InCall = kindLate, r.Late.InCall
	case errors.Is(cause, driver.ErrClosed):
		r.Kind, r.Text = kindClosed, cause.Error()
	case errors.Is(cause, driver.ErrAborted):
		r.Kind, r.Text = kindAborted, cause.Error()
		errors.As(cause, &r.Peer) // the ranks that have aborted
	case errors.Is(cause, driver.ErrInterrupted):
		r.Kind, r.Text, r.Interrupted = kindAborted, cause.Error(), true
	case errors.As(cause, &r.Peer):
		r.Kind, r.InCall = kindPeer, r.Peer.InCall
	default:
		r.Kind, r.Text = kindOther, cause.Error()
	}

	return r
}

// hasRequiredFields reports whether toError can convert the report, which another rank has sent.
// It returns false if the field for the report's kind is nil.
func (r *report) hasRequiredFields() bool {
	switch r.Kind {
	case kindPrior:
		return r.Cause != nil && r.Cause.hasRequiredFields()
	case kindLost:
		return r.Lost != nil
	case kindLate:
		return r.Late != nil
	case kindMessages:
		return r.Messages != nil
	case kindPeer:
		return r.Peer != nil
	default: // toError needs only texts
		return true
	}
}

// toError converts the report to an error like the reported cause. Call it only if
// hasRequiredFields returns true.
func (r *report) toError() error {
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
		return &PriorError{InCall: r.InCall, Rank: r.Rank, Cause: r.Cause.toError()}
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

	// The other kinds have only texts.
	return errors.New(cmp.Or(r.Text, r.InCall))
}

// peerReportError has the text of another rank's error, but wraps only a part of it.
type peerReportError struct {
	text string
	err  error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Unwrap() error { return e.err }
