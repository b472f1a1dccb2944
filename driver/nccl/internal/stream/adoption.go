package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoption is the additional state of a stream that another library owns and may capture or destroy
// at any time. The zero value belongs to a stream that is not adopted.
type adoption struct {
	adopted bool
	streams *Streams
	handle  cuda.Stream
	// queued marks the end of the work that symmem has queued. CUDA is queried about this event
	// instead of the stream, because querying the stream would invalidate a capture that the owner
	// happens to begin at that moment. queued is recorded with Stream.Mu held.
	queued Event
	// queryMu is read-locked while CUDA is queried about a capture of the stream. stopQueries
	// write-locks queryMu to wait for such queries, because the owner may destroy the stream
	// afterwards. queryMu is locked after Stream.Mu.
	queryMu ranked.RWMutex[adoptionQueryMu]
	stopped bool // whether the stream must no longer be queried; guarded by queryMu
	// Recording is set while a launch is being added to a capture that the owner began; guarded by
	// Stream.Mu.
	Recording bool
}

// Adopted reports whether another library owns the stream.
func (a *adoption) Adopted() bool { return a.adopted }

// IsCapturing reports whether an adopted stream is being captured. For CUDA's default stream, it
// also returns true while another stream is being captured in a mode in which the default stream
// must not be used. A closed stream is not queried, because the owner may have destroyed it.
func (a *adoption) IsCapturing() (bool, error) {
	a.queryMu.RLock()
	defer a.queryMu.RUnlock()
	if !a.adopted || a.stopped {
		return false, nil
	}
	device := a.streams.GPU
	status, err := gpu.Get(device, func() (cuda.CaptureStatus, error) {
		return device.CUDA.CaptureStatus(a.handle)
	})
	if errors.Is(err, cuda.ErrCaptureImplicit) {
		return true, nil
	}
	return status != cuda.CaptureNone, err
}

// stopQueries waits for running queries and makes IsCapturing return without a query from then on.
func (a *adoption) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.stopped = true
}

// recordAll records an event after all work on an open adopted stream. If the stream is being
// captured, recordAll records nothing and capturing is true. recordAll calls recorded after it has
// recorded the new event and before that event replaces queued. The caller must hold Stream.Mu.
//
// A capture that the owner begins after the first check would include the new event. The second
// check detects such a capture, in which case recordAll returns, because the event must not be
// queried before the capture has ended. The first check is needed for the default stream, on which
// nothing may be recorded during any capture.
func (a *adoption) recordAll(recorded func() error) (capturing bool, err error) {
	device := a.streams.GPU
	for {
		if capturing, err = a.IsCapturing(); capturing || err != nil {
			return capturing, err
		}
		point, err := a.streams.NewPoint()
		if err == nil {
			err = device.Do(func() error { return device.CUDA.EventRecord(point.Handle, a.handle) })
		}
		if err != nil {
			return false, err
		}
		if capturing, err = a.IsCapturing(); capturing || err != nil {
			return capturing, err
		}
		if _, err := point.reached(); !errors.Is(err, cuda.ErrCapturedEvent) {
			err := recorded()
			a.queued.set(point)
			return false, err
		}
	}
}
