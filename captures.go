package symmem

import (
	"context"
	"slices"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// captures keeps captures of streams and registrations of memory apart: a capture would record, and
// be spoiled by, what a registration does on the device.
type captures struct {
	mu      *ranked.Mutex[runtimeMu]
	timeout time.Duration // of a wait for registrations
	own     int           // own streams that capture, or are about to; guarded by mu
	// adopted lists adopted streams with calls in a capture, until the capture is known to have
	// ended. It is replaced, never changed; guarded by mu.
	adopted []*Stream
	// registering counts registrations in progress, for which captures wait before they begin;
	// registered is closed when it becomes 0. Both are guarded by mu.
	registering int
	registered  chan struct{}
}

// exclude runs a step that is not allowed on a rank with a capturing stream. It is collective: if a
// stream of any rank captures, all ranks return ErrCapturing without running the step. New captures
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

// hold reports whether a stream of this rank captures, and prevents new captures until release is
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

// any reports whether a stream of this rank captures: one of its own, the stream of a call, or an
// adopted one with calls in a capture. Other adopted streams may no longer exist.
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
		if s.captured() { // again, by a call that has found it listed
			c.note(s, true)
			return true
		}
	}
	return false
}

// begin counts a capture of an own stream once no registration is in progress.
func (c *captures) begin() error {
	return c.afterRegistrations("beginning a capture", func() { c.own++ })
}

// end ends a capture of an own stream.
func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own--
}

// beginAdopted lists an adopted stream as soon as no registration is in progress.
func (c *captures) beginAdopted(doing string, s *Stream) error {
	return c.afterRegistrations(doing, func() { c.set(s, true) })
}

// note lists an adopted stream whose capture may have calls, or removes it from the list.
func (c *captures) note(s *Stream, may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(s, may)
}

// set is note with mu held.
func (c *captures) set(s *Stream, may bool) {
	if slices.Contains(c.adopted, s) == may {
		return
	}
	others := slices.DeleteFunc(slices.Clone(c.adopted), func(o *Stream) bool { return o == s })
	if may {
		others = append(others, s)
	}
	c.adopted = others
}

// forget empties the list of adopted streams.
func (c *captures) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adopted = nil
}

// afterRegistrations runs a step, with mu held, while no registration is in progress. It waits for
// registrations of other goroutines.
func (c *captures) afterRegistrations(doing string, step func()) error {
	var expired <-chan time.Time
	for {
		c.mu.Lock()
		over := c.registered
		if over == nil {
			step()
		}
		c.mu.Unlock()
		if over == nil {
			return nil
		}
		if expired == nil {
			expired = time.After(c.timeout)
		}
		select {
		case <-over:
		case <-expired:
			return &TimeoutError{
				Doing:  doing + ": a registration of another goroutine of this rank has not ended",
				Waited: c.timeout,
			}
		}
	}
}
