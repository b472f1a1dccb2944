package symmem

import (
	"context"
	"slices"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// captures prevents a capture of a stream and a registration of memory from overlapping. Otherwise,
// the capture would record the device calls of the registration and become invalid.
type captures struct {
	mu      *ranked.Mutex[runtimeMu]
	timeout time.Duration // limits a wait for registrations
	own     int           // captures of streams that symmem created; guarded by mu
	// adopted lists the adopted streams whose captures contain calls. A stream stays in the list
	// until its capture is known to have ended. The list is replaced, never modified; guarded by
	// mu.
	adopted []*Stream
	// registering counts the registrations in progress. Captures begin only when it is 0; guarded
	// by mu.
	registering int
	// registered is closed when registering becomes 0; guarded by mu.
	registered chan struct{}
}

// exclude runs a step that is not permitted while a rank captures a stream. It is collective: if
// any rank captures a stream, all ranks return ErrCapturing without running the step. New captures
// wait until it returns.
func (c *captures) exclude(
	ctx context.Context, exchange agreement.Exchange, step func() error,
) error {
	capturing, release := c.hold()
	defer release()
	mine := []byte{0}
	if capturing {
		mine[0] = 1
	}
	got, err := exchange(ctx, mine)
	if err != nil {
		return err
	}
	for _, theirs := range got {
		if len(theirs) == 1 && theirs[0] == 1 {
			return ErrCapturing
		}
	}
	return step()
}

// hold reports whether this rank captures a stream, and prevents new captures until release is
// called.
func (c *captures) hold() (capturing bool, release func()) {
	c.mu.Lock()
	if c.registering++; c.registering == 1 {
		c.registered = make(chan struct{})
	}
	c.mu.Unlock()
	return c.any(nil), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.registering--; c.registering == 0 {
			close(c.registered)
			c.registered = nil
		}
	}
}

// any reports whether this rank captures a stream. It checks the streams that symmem created, the
// stream of the current call, which may be nil, and adopted streams whose captures contain calls.
// Other adopted streams may no longer exist.
func (c *captures) any(on *Stream) bool {
	c.mu.Lock()
	own, adopted := c.own > 0, c.adopted
	c.mu.Unlock()
	if own || on != nil && on.captured() {
		return true
	}
	for _, s := range adopted {
		if s.captured() {
			return true
		}
		c.note(s, false)
		if s.captured() { // a call may have found the stream listed and begun to use it
			c.note(s, true)
			return true
		}
	}
	return false
}

// begin waits until no registration is in progress, and counts a capture.
func (c *captures) begin() error {
	return c.afterRegistrations("beginning a capture", func() { c.own++ })
}

// end ends a capture that begin has counted.
func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own--
}

// beginAdopted waits until no registration is in progress, and lists an adopted stream.
func (c *captures) beginAdopted(doing string, s *Stream) error {
	return c.afterRegistrations(doing, func() { c.set(s, true) })
}

// note adds an adopted stream whose capture may contain calls to the list, or removes it.
func (c *captures) note(s *Stream, mayCapture bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(s, mayCapture)
}

// set implements note. mu is held.
func (c *captures) set(s *Stream, mayCapture bool) {
	if slices.Contains(c.adopted, s) == mayCapture {
		return
	}
	others := slices.DeleteFunc(slices.Clone(c.adopted), func(o *Stream) bool { return o == s })
	if mayCapture {
		others = append(others, s)
	}
	c.adopted = others
}

// forget removes all adopted streams from the list.
func (c *captures) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adopted = nil
}

// afterRegistrations waits until no registration is in progress, and then runs a step with mu held.
func (c *captures) afterRegistrations(doing string, step func()) error {
	var expired <-chan time.Time
	for {
		c.mu.Lock()
		ended := c.registered
		if ended == nil {
			step()
		}
		c.mu.Unlock()
		if ended == nil {
			return nil
		}
		if expired == nil {
			expired = time.After(c.timeout)
		}
		select {
		case <-ended:
		case <-expired:
			return &TimeoutError{
				Doing:  doing + ": a registration of another goroutine of this rank has not ended",
				Waited: c.timeout,
			}
		}
	}
}
