package symmem

import (
	"context"
	"slices"
	"sync"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// captures prevents captures of streams while memory is being registered, and vice versa, because a
// registration would invalidate a capture. mu guards the fields from ownCaptureCount on.
type captures struct {
	mu              *ranked.Mutex[runtimeMu]
	timeout         time.Duration // limits a wait for registrations
	ownCaptureCount int           // captures of streams that symmem created
	// adopted lists adopted streams (streams of other libraries) whose captures contain calls of
	// symmem and may not have ended. The list is replaced, never modified.
	adopted           []*Stream
	registrationCount int           // number of registrations in progress
	registrationsDone chan struct{} // closed when registrationCount becomes 0
}

// sharedCaptures is the set of *captures of the GPU worlds that Open created in this process. A
// registration in one world would invalidate a capture in another world, too. Worlds of OpenLocal
// are not in it: their ranks stand for separate processes.
var sharedCaptures sync.Map

// share adds c to sharedCaptures: during captures of c's world, registrations in the other worlds
// of the set fail, and during their captures, registrations in c's world fail.
func (c *captures) share() { sharedCaptures.Store(c, nil) }

func (c *captures) unshare() { sharedCaptures.Delete(c) }

// runOutside runs step, which must not run while any rank is capturing a stream. If some rank is
// capturing a stream, all ranks return ErrCapturing instead. runOutside is collective.
func (c *captures) runOutside(
	ctx context.Context, exchange agreement.Exchange, step func() error,
) error {
	isCapturing, release := c.postpone()
	defer release()
	ownState := []byte{0}
	if isCapturing {
		ownState[0] = 1
	}
	states, err := exchange(ctx, ownState)
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

// postpone makes new captures wait until release is called. isCapturing reports whether this rank
// is already capturing a stream.
func (c *captures) postpone() (isCapturing bool, release func()) {
	c.mu.Lock()
	if c.registrationCount++; c.registrationCount == 1 {
		c.registrationsDone = make(chan struct{})
	}
	c.mu.Unlock()
	return c.inProgress(nil), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.registrationCount--; c.registrationCount == 0 {
			close(c.registrationsDone)
			c.registrationsDone = nil
		}
	}
}

// inProgress reports whether this rank is capturing a stream. current is the stream of the current
// call, or nil. Of the other adopted streams, inProgress queries only those in c.adopted, because
// the owners of the others may have destroyed them.
func (c *captures) inProgress(current *Stream) bool {
	if c.inWorld(current) {
		return true
	}
	if _, isShared := sharedCaptures.Load(c); !isShared {
		return false
	}
	for other := range sharedCaptures.Range {
		if other := other.(*captures); other != c && other.inWorld(nil) {
			return true
		}
	}
	return false
}

// inWorld is like inProgress, without the other worlds of the process.
func (c *captures) inWorld(current *Stream) bool {
	c.mu.Lock()
	hasOwn, adopted := c.ownCaptureCount > 0, c.adopted
	c.mu.Unlock()
	if hasOwn || current != nil && current.isCapturing() {
		return true
	}
	for _, s := range adopted {
		if s.isCapturing() {
			return true
		}
		c.updateAdopted(s, false)
		if s.isCapturing() { // a call may have found the stream listed and begun to use it
			c.updateAdopted(s, true)
			return true
		}
	}
	return false
}

// begin waits for registrations in progress, and counts a new capture until end is called.
func (c *captures) begin() error {
	return c.afterRegistrations("beginning a capture", func() { c.ownCaptureCount++ })
}

func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownCaptureCount--
}

// beginAdopted is like begin, for a capture of an adopted stream.
func (c *captures) beginAdopted(operation string, s *Stream) error {
	return c.afterRegistrations(operation, func() { c.setAdopted(s, true) })
}

// updateAdopted adds a stream to the list of adopted streams, or removes it.
func (c *captures) updateAdopted(s *Stream, isListed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setAdopted(s, isListed)
}

// setAdopted is like updateAdopted, but requires that the caller holds mu.
func (c *captures) setAdopted(s *Stream, isListed bool) {
	if slices.Contains(c.adopted, s) == isListed {
		return
	}
	list := slices.DeleteFunc(slices.Clone(c.adopted), func(o *Stream) bool { return o == s })
	if isListed {
		list = append(list, s)
	}
	c.adopted = list
}

func (c *captures) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adopted = nil
}

// afterRegistrations waits until no registration is in progress, and then runs step with mu held.
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
