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

// For is asked again and again with whether a peer has failed. It returns for how long one is known
// to have, negative if none has.
func (t *GraceTimer) For(failed bool) time.Duration {
	switch {
	case !failed:
		return -1
	case t.since.IsZero():
		t.since = time.Now()
	}
	return time.Since(t.since)
}

// Over reports whether Grace is over; it asks For.
func (t *GraceTimer) Over(failed bool) bool { return t.For(failed) >= Grace }

// Reason says how a rank has failed, as far as the others need to know before they meet. Its values
// are shared between processes.
type Reason uint32

// The reasons.
const (
	// NotFailed: the rank is well.
	NotFailed Reason = iota
	// FailedItself: it has seen or caused a fault.
	FailedItself
	// Aborted: it was told to abort the group.
	Aborted
	// Followed: it ended only because another rank had failed.
	Followed
)

// ReasonOf is the reason for which a rank fails by an error.
func ReasonOf(err error) Reason {
	switch {
	case err == nil:
		return NotFailed
	case errors.As(err, new(*driver.PeerError)):
		return Followed
	case errors.Is(err, driver.ErrAborted):
		return Aborted
	default:
		return FailedItself
	}
}
