package symmem

import (
	"cmp"
	"errors"

	"symmem/driver"
)

// Suppose that rank 0 waits for rank 1, and rank 2 waits for rank 0. When rank 1 exits, rank 0 gets
// a RankLostError, but rank 2 gets only a PeerError. The ranks of a failed group therefore exchange
// their errors as JSON reports, select one as the cause, and all return the cause.

// The kinds of reports, roughly from cause to consequence: a lost rank makes other ranks late.
const (
	kindLost     = "lost"     // a rank has exited or closed its Runtime
	kindPrior    = "prior"    // an earlier failure prevented the call
	kindClosed   = "closed"   // the rank has left the group
	kindDiverged = "diverged" // ranks made different calls
	kindMessages = "messages" // Sends and Recvs do not match
	kindLate     = "late"     // a timeout
	kindAborted  = "aborted"  // a call of Abort, or an interrupted wait
	kindPeer     = "peer"     // another rank has failed first
	kindOther    = "other"
)

// report is a rank's error in JSON. Another rank can rebuild an error of the same type from it.
type report struct {
	Kind   string `json:"kind"`
	InCall string `json:"doing"` // the failed call, or the text of a MismatchError

	// At most one of these fields contains the error, depending on its type.
	Lost       *RankLostError        `json:"lost,omitempty"`
	Late       *TimeoutError         `json:"late,omitempty"`
	Deadlock   *DeadlockError        `json:"deadlock,omitempty"`
	Divergence *DivergenceError      `json:"divergence,omitempty"`
	Messages   *MessageError         `json:"messages,omitempty"`
	Peer       *PeerError            `json:"peer,omitempty"`
	Mismatch   *driver.MismatchError `json:"mismatch,omitempty"` // with a nil Call

	Text string `json:"text,omitempty"` // the text of an error of another type
	// Interrupted is set if Options.Interrupted ended a wait.
	Interrupted bool `json:"interrupted,omitempty"`

	// Rank and Cause describe the earlier failure in a PriorError. Pending is set while the group of
	// that failure has not agreed on its cause.
	Rank    int     `json:"rank"`
	Cause   *report `json:"cause,omitempty"`
	Pending bool    `json:"pending,omitempty"`

	// Suspect is set if a pool's layout may differ between ranks after an earlier failure.
	Suspect bool `json:"suspect,omitempty"`
	sender  int  // world rank; set by the receiver
}

func reportOf(cause error) report {
	var prior *PriorError
	if errors.As(cause, &prior) { // before other types, because a PriorError wraps one of them
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
		shortened := *r.Messages // to limit the size of the JSON
		shortened.Ends = shortened.Ends[:min(len(shortened.Ends), maxEnds)]
		r.Kind, r.Messages = kindMessages, &shortened
	case errors.As(cause, &r.Late):
		r.Kind, r.InCall = kindLate, r.Late.InCall
	case errors.Is(cause, driver.ErrClosed):
		r.Kind, r.Text = kindClosed, cause.Error()
	case errors.Is(cause, driver.ErrAborted):
		r.Kind, r.Text = kindAborted, cause.Error()
		_ = errors.As(cause, &r.Peer) // stays nil if no other rank has aborted
	case errors.Is(cause, driver.ErrInterrupted):
		r.Kind, r.Text, r.Interrupted = kindAborted, cause.Error(), true
	case errors.As(cause, &r.Peer):
		r.Kind, r.InCall = kindPeer, r.Peer.InCall
	default:
		r.Kind, r.Text = kindOther, cause.Error()
	}

	return r
}

// hasRequiredFields reports whether a received report contains the error that toError returns.
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
	default: // InCall or Text suffices
		return true
	}
}

// toError returns an error of the reported type. It requires hasRequiredFields.
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
		return r.toDivergedError()
	default:
		return r.toTextError()
	}
}

func (r *report) toDivergedError() error {
	switch {
	case r.Divergence != nil:
		return r.Divergence
	case r.Deadlock != nil:
		return r.Deadlock
	case r.Mismatch != nil:
		return &peerReportError{text: r.InCall, err: r.Mismatch}
	default:
		return r.toTextError()
	}
}

func (r *report) toTextError() error { return errors.New(cmp.Or(r.Text, r.InCall)) }

// peerReportError is another rank's error. errors.Is and errors.As find err, the error of the same
// type.
type peerReportError struct {
	text string
	err  error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Unwrap() error { return e.err }
