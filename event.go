package symmem

import (
	"context"

	"symmem/driver"
)

// Event marks a point in a stream; NewEvent makes it. It is safe for concurrent use.
type Event struct {
	rt   *Runtime
	mark driver.Event
}

// made reports whether NewEvent has made the event.
func (e *Event) made() bool { return e != nil && e.mark != nil }

// Done reports whether the last recorded point has been reached. The zero Event is never done.
func (e *Event) Done() bool { return e.made() && e.mark.Done() }

// Synchronize waits until the last recorded point has been reached, and returns the first error of
// the stream's work before that point, as often as it is called.
func (e *Event) Synchronize(ctx context.Context) error {
	ctx = orBackground(ctx)
	if !e.made() {
		return invalid("waiting for no event")
	}
	return awaitStreamCause(e.mark.Synchronize(ctx))
}
