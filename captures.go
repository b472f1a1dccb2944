package symmem

import (
	"context"
	"slices"
	"sync"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// A capture records a stream's work in a graph instead of running it. The ranks of a group register
// memory together, and a registration during a capture would invalidate the capture:
//
//   - If rank 0 is capturing a stream, a registration fails with ErrCapturing on all ranks.
//   - If rank 0 is registering memory, a capture that begins on rank 0 waits for the end of the
//     registration.
//
// Captures of streams that symmem created are counted. A stream of another library is an adopted
// stream. Its captures begin and end without a call of symmem. Therefore, symmem lists the adopted
// streams in whose captures it has recorded calls, and asks the backend whether they still capture.
//
// Each call of Open opens a world. If a process has opened several worlds on GPUs, a registration
// in one of them would also invalidate captures in the others.

// captures keeps a world's registrations and captures apart on this rank.
type captures struct {
	timeout time.Duration // limits how long a capture waits for registrations

	mu              *ranked.Mutex[runtimeMu] // guards the fields below
	ownCaptureCount int                      // captures of streams that symmem created
	// adopted lists adopted streams whose captures may not have ended. The list is replaced, never
	// modified.
	adopted           []*Stream
	registrationCount int           // registrations in progress
	registrationsDone chan struct{} // closed when registrationCount becomes 0; nil while it is 0
}

// sharedCaptures is the set of *captures of this process's worlds on GPUs. Worlds of OpenLocal are
// not in it, because their ranks stand for separate processes.
var sharedCaptures sync.Map // *captures -> nil

// sharedCapturesLock is held while a registration or a capture begins in one of these worlds. If
// both begin at the same time, the second one thus sees the first one.
var sharedCapturesLock ranked.Mutex[sharedCapturesMu]

func (c *captures) share() { sharedCaptures.Store(c, nil) }

func (c *captures) unshare() { sharedCaptures.Delete(c) }

func (c *captures) isShared() bool {
	_, isShared := sharedCaptures.Load(c)
	return isShared
}

// runWithoutCapture runs step, a registration, if no rank is capturing a stream. Otherwise, all
// ranks return ErrCapturing. All ranks must call it. Through exchange, each rank learns whether the
// others are capturing.
func (c *captures) runWithoutCapture(
	ctx context.Context, exchange agreement.Exchange, step func() error,
) error {
	isCapturing, permitCaptures := c.delayCaptures()
	defer permitCaptures()
	const notCapturing, capturing = 0, 1 // the bytes that ranks exchange
	ownState := []byte{notCapturing}
	if isCapturing {
		ownState[0] = capturing
	}

	states, err := exchange(ctx, ownState)
	if err != nil {
		return err
	}

	for _, state := range states {
		isRankCapturing := len(state) == 1 && state[0] == capturing
		if isRankCapturing {
			return ErrCapturing
		}
	}

	return step()
}

// delayCaptures begins a registration: it makes new captures wait until permitCaptures is called.
// isCapturing is true if this rank is already capturing a stream.
func (c *captures) delayCaptures() (isCapturing bool, permitCaptures func()) {
	c.beginRegistration() // first, so that no capture begins after the query
	isCapturing = c.isAnyCapturing()
	return isCapturing, c.endRegistration
}

func (c *captures) beginRegistration() {
	if c.isShared() {
		sharedCapturesLock.Lock()
		defer sharedCapturesLock.Unlock()
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.registrationCount++
	isFirst := c.registrationCount == 1
	if isFirst {
		c.registrationsDone = make(chan struct{})
	}
}

func (c *captures) endRegistration() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registrationCount--
	wasLast := c.registrationCount == 0
	if wasLast {
		close(c.registrationsDone) // wakes the waiting captures
		c.registrationsDone = nil
	}
}

// isAnyCapturing reports whether this rank is capturing a stream. If c is in sharedCaptures, that
// includes the other worlds there. Of adopted streams, it queries only the listed ones: the owners
// of others may have destroyed them.
func (c *captures) isAnyCapturing() bool {
	if c.isWorldCapturing() {
		return true
	}

	if !c.isShared() {
		return false
	}

	for key := range sharedCaptures.Range {
		other := key.(*captures)
		if other != c && other.isWorldCapturing() {
			return true
		}
	}

	return false
}

// isWorldCapturing is isAnyCapturing for this world only. It also removes adopted streams from the
// list, if it finds that their captures have ended.
func (c *captures) isWorldCapturing() bool {
	c.mu.Lock()
	hasOwnCapture := c.ownCaptureCount > 0
	adopted := c.adopted
	c.mu.Unlock()
	if hasOwnCapture {
		return true
	}

	return slices.ContainsFunc(adopted, c.checkAdopted)
}

// checkAdopted reports whether a listed stream is being captured. If it is not, checkAdopted
// removes it from the list.
func (c *captures) checkAdopted(s *Stream) bool {
	if s.isCapturing() {
		return true
	}

	c.updateAdopted(s, c.removeAdopted)
	// Query again: a new capture may have begun since the first query. If its beginAdopted came
	// before the removal, the list has lost the stream.
	if !s.isCapturing() {
		return false
	}

	c.updateAdopted(s, c.addAdopted)
	return true
}

// updateAdopted calls addAdopted or removeAdopted with mu held.
func (c *captures) updateAdopted(s *Stream, update func(*Stream)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	update(s)
}

// addAdopted lists an adopted stream, unless it is listed. The caller must hold mu.
func (c *captures) addAdopted(s *Stream) {
	if !slices.Contains(c.adopted, s) {
		c.adopted = append(slices.Clone(c.adopted), s)
	}
}

// removeAdopted removes a stream from the list, if it is there. The caller must hold mu.
func (c *captures) removeAdopted(s *Stream) {
	if slices.Contains(c.adopted, s) {
		isRemoved := func(listed *Stream) bool { return listed == s }
		c.adopted = slices.DeleteFunc(slices.Clone(c.adopted), isRemoved)
	}
}

// clearAdopted empties the list of adopted streams.
func (c *captures) clearAdopted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adopted = nil
}

// begin waits for the registrations in progress. Then it counts a capture of a stream that symmem
// created, until end.
func (c *captures) begin() error {
	return c.runAfterRegistrations("beginning a capture", func() { c.ownCaptureCount++ })
}

func (c *captures) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ownCaptureCount--
}

// beginAdopted waits for the registrations in progress. Then it lists an adopted stream, in whose
// capture symmem is about to record a call.
func (c *captures) beginAdopted(operation string, s *Stream) error {
	return c.runAfterRegistrations(operation, func() { c.addAdopted(s) })
}

// runAfterRegistrations waits until no registration is in progress. If c is in sharedCaptures, that
// includes the other worlds there. Then it runs step with mu held. After the timeout, it returns a
// TimeoutError that names the operation.
func (c *captures) runAfterRegistrations(operation string, step func()) error {
	var expired <-chan time.Time // set at the first wait
	for {
		registrationsDone := c.runUnlessRegistering(step)
		hasRun := registrationsDone == nil
		if hasRun {
			return nil
		}

		if expired == nil {
			expired = time.After(c.timeout)
		}

		select {
		case <-registrationsDone:
		case <-expired:
			return &TimeoutError{
				InCall: operation + ": another goroutine of this rank is still registering memory",
				Waited: c.timeout,
			}
		}
	}
}

// runUnlessRegistering runs step with mu held and returns nil. If a registration is in progress, it
// returns the registrationsDone of the world that is registering instead.
func (c *captures) runUnlessRegistering(step func()) (registrationsDone <-chan struct{}) {
	if c.isShared() {
		sharedCapturesLock.Lock()
		defer sharedCapturesLock.Unlock()
		for key := range sharedCaptures.Range {
			if done := key.(*captures).pendingRegistrations(); done != nil {
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
