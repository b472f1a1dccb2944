package symmem

import (
	"context"
	"slices"
	"sync"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// captures keeps registrations of memory and captures of streams apart: a registration during a
// capture would invalidate the capture. While a stream is captured, registrations are refused.
// While a registration is in progress, new captures wait. mu guards the fields from
// ownCaptureCount on.
type captures struct {
	mu              *ranked.Mutex[runtimeMu]
	timeout         time.Duration // limits waits for registrations
	ownCaptureCount int           // captures of streams that symmem created
	// adopted lists other libraries' streams whose captures contain calls of symmem and may not have
	// ended. The list is replaced, never modified.
	adopted           []*Stream
	registrationCount int           // registrations in progress
	registrationsDone chan struct{} // closed when registrationCount becomes 0; nil while it is 0
}

// sharedCaptures is the set of *captures of this process's worlds on GPUs. (A world is what one
// call of Open has opened.) The set exists because a registration in one world would invalidate a
// capture in another. Worlds of OpenLocal are not in it: their ranks stand for separate processes.
var sharedCaptures sync.Map // *captures -> nil

// sharedCapturesLock is held while a registration or a capture begins in one of these worlds.
var sharedCapturesLock ranked.Mutex[sharedCapturesMu]

func (c *captures) isShared() bool {
	_, isShared := sharedCaptures.Load(c)
	return isShared
}

func (c *captures) share() { sharedCaptures.Store(c, nil) }

func (c *captures) unshare() { sharedCaptures.Delete(c) }

// runWithoutCapture runs step only if no rank is capturing a stream. Otherwise, all ranks return
// ErrCapturing. All ranks must call it.
func (c *captures) runWithoutCapture(
	ctx context.Context, exchange agreement.Exchange, step func() error,
) error {
	isCapturing, release := c.delayCaptures()
	defer release()
	const notCapturing, capturing = 0, 1 // the messages of the exchange, of one byte
	ownState := []byte{notCapturing}
	if isCapturing {
		ownState[0] = capturing
	}

	states, err := exchange(ctx, ownState)
	if err != nil {
		return err
	}

	for _, state := range states {
		if len(state) == 1 && state[0] == capturing {
			return ErrCapturing
		}
	}

	return step()
}

// delayCaptures begins a registration: it makes new captures wait until release is called.
// isCapturing is true if this rank is already capturing a stream.
func (c *captures) delayCaptures() (isCapturing bool, release func()) {
	c.addRegistration() // first, so that no capture begins after the query
	return c.isAnyCapturing(nil), c.removeRegistration
}

// addRegistration counts a registration that begins.
func (c *captures) addRegistration() {
	if c.isShared() {
		sharedCapturesLock.Lock()
		defer sharedCapturesLock.Unlock()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.registrationCount++
	if c.registrationCount == 1 {
		c.registrationsDone = make(chan struct{})
	}
}

// removeRegistration ends a registration. After the last one, it wakes the waiting captures.
func (c *captures) removeRegistration() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registrationCount--
	if c.registrationCount == 0 {
		close(c.registrationsDone)
		c.registrationsDone = nil
	}
}

// isAnyCapturing reports whether this rank is capturing a stream. current is the stream of the
// call, or nil. Of other libraries' streams, it queries only current and those in c.adopted: the
// owners of others may have destroyed them.
func (c *captures) isAnyCapturing(current *Stream) bool {
	if c.isWorldCapturing(current) {
		return true
	}

	if !c.isShared() {
		return false
	}

	for key := range sharedCaptures.Range {
		other := key.(*captures)
		if other != c && other.isWorldCapturing(nil) {
			return true
		}
	}

	return false
}

// isWorldCapturing is isAnyCapturing for the streams of this world only. It also removes streams
// whose captures have ended from c.adopted.
func (c *captures) isWorldCapturing(current *Stream) bool {
	c.mu.Lock()
	hasOwnCapture := c.ownCaptureCount > 0
	adopted := c.adopted
	c.mu.Unlock()
	if hasOwnCapture {
		return true
	}

	if current != nil && current.isCapturing() {
		return true
	}

	for _, s := range adopted {
		if s.isCapturing() {
			return true
		}

		c.updateAdopted(s, c.removeAdopted)
		// A new capture may have begun since the query. Its beginAdopted had no effect if it came
		// before the removal, so query again.
		if s.isCapturing() {
			c.updateAdopted(s, c.addAdopted)
			return true
		}
	}

	return false
}

// begin waits for registrations in progress, and then records a capture of a stream that symmem
// created. The capture counts until end.
func (c *captures) begin() error {
	return c.runAfterRegistrations("beginning a capture", func() { c.ownCaptureCount++ })
}

func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownCaptureCount--
}

// beginAdopted waits for registrations in progress, and then adds s to the adopted streams.
func (c *captures) beginAdopted(operation string, s *Stream) error {
	return c.runAfterRegistrations(operation, func() { c.addAdopted(s) })
}

// updateAdopted calls addAdopted or removeAdopted with mu held.
func (c *captures) updateAdopted(s *Stream, update func(*Stream)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	update(s)
}

// addAdopted adds s to the adopted streams, unless it is there. The caller must hold mu.
func (c *captures) addAdopted(s *Stream) {
	if !slices.Contains(c.adopted, s) {
		c.adopted = append(slices.Clone(c.adopted), s)
	}
}

// removeAdopted removes s from the adopted streams, if it is there. The caller must hold mu.
func (c *captures) removeAdopted(s *Stream) {
	if slices.Contains(c.adopted, s) {
		c.adopted = slices.DeleteFunc(slices.Clone(c.adopted), func(other *Stream) bool {
			return other == s
		})
	}
}

func (c *captures) clearAdopted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adopted = nil
}

// runAfterRegistrations waits until no world of this process is registering memory. It then runs
// step with mu held. After the timeout, it returns a TimeoutError, in which operation names the
// call.
func (c *captures) runAfterRegistrations(operation string, step func()) error {
	var expired <-chan time.Time // set at the first wait
	for {
		done := c.runUnlessRegistering(step)
		if done == nil { // step has run
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

// runUnlessRegistering runs step with mu held and returns nil. If a registration is in progress, it
// does not run step, and returns a channel that is closed when the registration ends.
func (c *captures) runUnlessRegistering(step func()) (registrationsDone <-chan struct{}) {
	if c.isShared() {
		sharedCapturesLock.Lock()
		defer sharedCapturesLock.Unlock()
		for other := range sharedCaptures.Range {
			if done := other.(*captures).pendingRegistrations(); done != nil {
				return done
			}
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.registrationsDone == nil {
		step()
	}

	return c.registrationsDone
}

// pendingRegistrations returns registrationsDone, which is nil if no registration is in progress.
func (c *captures) pendingRegistrations() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.registrationsDone
}
