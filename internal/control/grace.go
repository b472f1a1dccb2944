package control

import (
	"errors"
	"time"

	"symmem/driver"
)

// Grace bounds how long work of all ranks may continue after a rank has failed.
const Grace = 100 * time.Millisecond

// GraceTimer measures the time since a peer's failure. It is not safe for concurrent use.
type GraceTimer struct{ since time.Time }

// Elapsed returns the time since the first call with failed set, or a negative duration if failed
// is false.
func (t *GraceTimer) Elapsed(failed bool) time.Duration {
	switch {
	case !failed:
		return -1
	case t.since.IsZero():
		t.since = time.Now()
	}

	return time.Since(t.since)
}

// Expired reports whether Elapsed has reached Grace.
func (t *GraceTimer) Expired(failed bool) bool { return t.Elapsed(failed) >= Grace }

// Reason classifies a rank's failure for the other ranks. Its values are shared between processes.
type Reason uint32

// The reasons of a failure.
const (
	NotFailed       Reason = iota // the rank has not failed
	FailedItself                  // the rank has observed or caused a fault
	Aborted                       // its program has aborted the group
	FailedAfterPeer               // the rank failed only because another had failed
)

// ReasonOf classifies the error with which a rank fails.
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
