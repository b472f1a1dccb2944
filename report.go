package symmem

import (
	"cmp"
	"errors"

	"symmem/driver"
)

// When a group fails, its ranks can see different errors. For example, rank 1 has exited. Rank 0
// waits for rank 1, and gets a RankLostError. Rank 2 waits for rank 0, and gets a PeerError, which
// only says that rank 0 has failed first. The ranks send each other reports of their errors, as
// JSON, and select the cause from the reports. A report contains the type and the fields of an
// error, so that the other ranks can return an error of the same type.

// The kinds of reports. If ranks report different kinds, the cause is usually of the kind that
// comes first: a lost rank can make other ranks late.
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

// report describes a rank's error for the other ranks.
type report struct {
	Kind string `json:"kind"` // one of the constants above
	// InCall describes the failed call, or contains the text of a MismatchError.
	InCall string `json:"doing"`
	// At most one of the next fields, up to Mismatch, is set: that of the error's type.
	Lost       *RankLostError        `json:"lost,omitempty"`
	Late       *TimeoutError         `json:"late,omitempty"`
	Deadlock   *DeadlockError        `json:"deadlock,omitempty"`
	Divergence *DivergenceError      `json:"divergence,omitempty"`
	Messages   *MessageError         `json:"messages,omitempty"`
	Peer       *PeerError            `json:"peer,omitempty"`
	Mismatch   *driver.MismatchError `json:"mismatch,omitempty"` // without its Call
	Text       string                `json:"text,omitempty"`     // set for errors without fields
	// Interrupted is set if Options.Interrupted has ended a wait.
	Interrupted bool `json:"interrupted,omitempty"`
	// Rank and Cause are set for a PriorError: the earlier failure, and the rank that had it.
	Rank  int     `json:"rank"`
	Cause *report `json:"cause,omitempty"`
	// Pending is set while the rank does not know the cause.
	Pending bool `json:"pending,omitempty"`
	// Suspect is set if a pool's layout may differ between ranks after another group's failure.
	Suspect bool `json:"suspect,omitempty"`
	sender  int  // world rank; set by the receiver
}

// reportOf returns the report of an error.
func reportOf(cause error) report {
	var prior *PriorError
	if errors.As(cause, &prior) { // first, because a PriorError wraps an error of another kind
		earlier := reportOf(prior.Cause)
		return report{Kind: kindPrior, InCall: prior.InCall, Rank: prior.Rank, Cause: &earlier}
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
		errors.As(cause, &r.Peer) // if the error names the ranks that have aborted
	case errors.Is(cause, driver.ErrInterrupted):
		r.Kind, r.Text, r.Interrupted = kindAborted, cause.Error(), true
	case errors.As(cause, &r.Peer):
		r.Kind, r.InCall = kindPeer, r.Peer.InCall
	default:
		r.Kind, r.Text = kindOther, cause.Error()
	}

	return r
}

// hasRequiredFields reports whether toError can convert a report that another rank has sent. It
// returns false if the report has no field that its kind requires.
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
	default: // texts suffice
		return true
	}
}

// toError converts the report to an error of the reported type. Call it only if hasRequiredFields
// returns true.
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
	}

	switch {
	case r.Kind == kindDiverged && r.Divergence != nil:
		return r.Divergence
	case r.Kind == kindDiverged && r.Deadlock != nil:
		return r.Deadlock
	case r.Kind == kindDiverged && r.Mismatch != nil:
		return &peerReportError{text: r.InCall, err: r.Mismatch}
	default: // the report has only a text
		return errors.New(cmp.Or(r.Text, r.InCall))
	}
}

// peerReportError has the text of another rank's error. It wraps err, because errors.Is and
// errors.As should work as for that error.
type peerReportError struct {
	text string
	err  error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Unwrap() error { return e.err }
