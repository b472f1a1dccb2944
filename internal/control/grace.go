package control

import (
	"errors"
	"time"

	"symmem/driver"
)

// Grace is how long work that all ranks have submitted gets to end after one of them has failed.
const Grace = 100 * time.Millisecond

// GraceTimer measures Grace. The zero value is ready to use, by one goroutine.
type GraceTimer struct{ since time.Time }

// Elapsed is called again and again with whether a peer has failed. It returns for how long one is
// known to have failed, negative if none has.
func (t *GraceTimer) Elapsed(failed bool) time.Duration {
	switch {
	case !failed:
		return -1
	case t.since.IsZero():
		t.since = time.Now()
	}
	return time.Since(t.since)
}

// Expired reports whether Grace is over; it calls Elapsed.
func (t *GraceTimer) Expired(failed bool) bool { return t.Elapsed(failed) >= Grace }

// Reason says how a rank has failed, as far as the others need to know before reports are exchanged
// on the fault lane. Its values are shared between processes.
type Reason uint32

// The reasons.
const (
	// NotFailed: the rank has not failed.
	NotFailed Reason = iota
	// FailedItself: it has seen or caused a fault.
	FailedItself
	// Aborted: it was told to abort the group.
	Aborted
	// FailedAfterPeer: it ended only because another rank had failed.
	FailedAfterPeer
)

// ReasonOf is the reason for which a rank fails by an error.
func ReasonOf(err error) Reason {
	switch {
	case err == nil:
		return NotFailed
	case errors.As(err, new(*driver.PeerError)):
		return FailedAfterPeer
	case errors.Is(err, driver.ErrAborted):
		return Aborted
	default:
		return FailedItself
	}
}
