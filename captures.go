package symmem

import (
	"context"
	"slices"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// captures keeps stream captures and memory registrations from overlapping, because the device
// calls of a registration would invalidate the capture. mu guards the fields from ownCount on.
type captures struct {
	mu       *ranked.Mutex[runtimeMu]
	timeout  time.Duration // limits a wait for registrations
	ownCount int           // captures of streams that symmem created
	// adopted lists other libraries' streams whose captures contain calls and may not have ended.
	// The list is replaced, never modified.
	adopted           []*Stream
	registering       int           // number of registrations in progress
	registrationsDone chan struct{} // closed when registering becomes 0
}

// runOutside runs a step that must not run while any rank is capturing a stream. If some rank is
// capturing, all ranks return ErrCapturing instead. It is collective.
func (c *captures) runOutside(
	ctx context.Context, exchange agreement.Exchange, step func() error,
) error {
	capturing, release := c.postpone()
	defer release()
	local := []byte{0}
	if capturing {
		local[0] = 1
	}
	states, err := exchange(ctx, local)
	if err != nil {
		return err
	}
	for _, state := range states {
		if len(state) == 1 && state[0] == 1 {
			return ErrCapturing
		}
	}
	return step()
}

// postpone reports whether this rank is capturing a stream, and makes new captures wait until
// release is called.
func (c *captures) postpone() (capturing bool, release func()) {
	c.mu.Lock()
	if c.registering++; c.registering == 1 {
		c.registrationsDone = make(chan struct{})
	}
	c.mu.Unlock()
	return c.inProgress(nil), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.registering--; c.registering == 0 {
			close(c.registrationsDone)
			c.registrationsDone = nil
		}
	}
}

// inProgress reports whether this rank is capturing a stream. current is the stream of the current
// call, or nil. It does not touch adopted streams that are not listed, because their owners may
// have destroyed them.
func (c *captures) inProgress(current *Stream) bool {
	c.mu.Lock()
	own, adopted := c.ownCount > 0, c.adopted
	c.mu.Unlock()
	if own || current != nil && current.isCapturing() {
		return true
	}
	for _, s := range adopted {
		if s.isCapturing() {
			return true
		}
		c.note(s, false)
		if s.isCapturing() { // a call may have found the stream listed and begun to use it
			c.note(s, true)
			return true
		}
	}
	return false
}

// begin waits for registrations in progress, and counts a new capture until end is called.
func (c *captures) begin() error {
	return c.afterRegistrations("beginning a capture", func() { c.ownCount++ })
}

func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownCount--
}

// beginAdopted is like begin, for a capture of an adopted stream.
func (c *captures) beginAdopted(operation string, s *Stream) error {
	return c.afterRegistrations(operation, func() { c.set(s, true) })
}

// note adds an adopted stream to the list or removes it.
func (c *captures) note(s *Stream, mayCapture bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(s, mayCapture)
}

// set requires that the caller holds mu.
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

func (c *captures) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adopted = nil
}

// afterRegistrations runs a step with mu held while no registration is in progress.
func (c *captures) afterRegistrations(operation string, step func()) error {
	var expired <-chan time.Time
	for {
		c.mu.Lock()
		done := c.registrationsDone
		if done == nil {
			step()
		}
		c.mu.Unlock()
		if done == nil {
			return nil
		}
		if expired == nil {
			expired = time.After(c.timeout)
		}
		select {
		case <-done:
		case <-expired:
			return &TimeoutError{
				InCall: operation + ": another goroutine of this rank is still registering memory",
				Waited: c.timeout,
			}
		}
	}
}
