package symmem

import (
	"context"

	"symmem/driver"
)

// Event marks a point in a stream. It is created by NewEvent and is safe for concurrent use.
type Event struct {
	rt   *Runtime
	mark driver.Event
}

func (e *Event) isValid() bool { return e != nil && e.mark != nil }

// Done reports whether the last recorded point has been reached, and false without one.
func (e *Event) Done() bool { return e.isValid() && e.mark.Done() }

// Synchronize waits for the last recorded point. Every call returns the first error of the stream's
// work before that point.
func (e *Event) Synchronize(ctx context.Context) error {
	ctx = orBackground(ctx)
	if !e.isValid() {
		return invalid("waiting for a nil or zero event")
	}

	return awaitStreamCause(e.mark.Synchronize(ctx))
}
