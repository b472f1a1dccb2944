package symmem

import (
	"cmp"
	"errors"

	"symmem/driver"
)

// When a group fails, its ranks may see different errors. For example, rank 0 gets a RankLostError
// because rank 1 has exited, but rank 2, which waits for rank 0, gets only a PeerError. The ranks
// therefore exchange their errors as JSON reports, and select one as the cause.

// The kinds of reports, in the order in which they are preferred as the cause.
const (
	kindLost     = "lost"     // a RankLostError
	kindPrior    = "prior"    // a PriorError
	kindClosed   = "closed"   // an ErrClosed
	kindDiverged = "diverged" // a DivergenceError, MismatchError or DeadlockError
	kindMessages = "messages" // a MessageError
	kindLate     = "late"     // a TimeoutError
	kindAborted  = "aborted"  // an ErrAborted or ErrInterrupted
	kindOther    = "other"
	kindPeer     = "peer" // a PeerError
)

// report describes a rank's error in JSON. Another rank can rebuild an error from it.
type report struct {
	Kind   string `json:"kind"`
	InCall string `json:"doing"` // the failed call, or the text of a Mismatch

	// The error, if it has one of these types.
	Lost       *RankLostError        `json:"lost,omitempty"`
	Late       *TimeoutError         `json:"late,omitempty"`
	Deadlock   *DeadlockError        `json:"deadlock,omitempty"`
	Divergence *DivergenceError      `json:"divergence,omitempty"`
	Messages   *MessageError         `json:"messages,omitempty"`
	Peer       *PeerError            `json:"peer,omitempty"`
	Mismatch   *driver.MismatchError `json:"mismatch,omitempty"` // its Call is nil

	Text string `json:"text,omitempty"` // for errors without any of these types
	// Interrupted is set for an ErrInterrupted, not for an ErrAborted.
	Interrupted bool `json:"interrupted,omitempty"`

	// Rank and Cause are the fields of a PriorError. Pending is set while Cause is not agreed on.
	Rank    int     `json:"rank"`
	Cause   *report `json:"cause,omitempty"`
	Pending bool    `json:"pending,omitempty"`

	// Suspect is set if the layout of a pool may differ between ranks.
	Suspect bool `json:"suspect,omitempty"`

	sender int // world rank; set by the receiver
}

func reportOf(err error) report {
	var prior *PriorError
	if errors.As(err, &prior) { // before other types, because a PriorError wraps one of them
		earlier := reportOf(prior.Cause)
		return report{Kind: kindPrior, InCall: prior.InCall, Rank: prior.Rank, Cause: &earlier}
	}

	var r report
	var mismatch *driver.MismatchError
	// An error can match several cases; the first is used.
	switch {
	case errors.As(err, &r.Lost):
		r.Kind, r.InCall = kindLost, r.Lost.InCall
	case errors.As(err, &r.Divergence):
		r.Kind, r.InCall = kindDiverged, "agreement"
	case errors.As(err, &mismatch):
		withoutCall := *mismatch
		withoutCall.Call = nil
		r.Kind, r.InCall, r.Mismatch = kindDiverged, mismatch.Error(), &withoutCall
	case errors.As(err, &r.Deadlock):
		r.Kind, r.InCall = kindDiverged, r.Deadlock.InCall
	case errors.As(err, &r.Messages):
		shortened := *r.Messages // to limit the size of the JSON
		shortened.Ends = shortened.Ends[:min(len(shortened.Ends), maxMessageEnds)]
		r.Kind, r.Messages = kindMessages, &shortened
	case errors.As(err, &r.Late):
		r.Kind, r.InCall = kindLate, r.Late.InCall
	case errors.Is(err, driver.ErrClosed):
		r.Kind, r.Text = kindClosed, err.Error()
	case errors.Is(err, driver.ErrAborted):
		r.Kind, r.Text = kindAborted, err.Error()
		_ = errors.As(err, &r.Peer) // sets Peer if another rank has aborted
	case errors.Is(err, driver.ErrInterrupted):
		r.Kind, r.Text, r.Interrupted = kindAborted, err.Error(), true
	case errors.As(err, &r.Peer):
		r.Kind, r.InCall = kindPeer, r.Peer.InCall
	default:
		r.Kind, r.Text = kindOther, err.Error()
	}

	return r
}

// hasRequiredFields reports whether a received report has the fields that toError needs.
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
	default: // other kinds need only text
		return true
	}
}

// toError returns an error of the reported type. It requires that hasRequiredFields is true.
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

// peerReportError has the text of another rank's error, and wraps an error for errors.Is and As.
type peerReportError struct {
	text string
	err  error
}

func (e *peerReportError) Error() string { return e.text }

func (e *peerReportError) Unwrap() error { return e.err }
