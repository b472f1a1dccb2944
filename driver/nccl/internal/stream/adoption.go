package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState is the additional state of a stream that another library owns. For other streams,
// it is zero.
//
// The owner can begin a capture of the stream, or destroy it, at any time. CUDA forbids some calls
// during a capture, so the methods first ask CUDA whether one is in progress.
type adoptedState struct {
	isAdopted bool
	streams   *Streams
	handle    cuda.Stream
	// queuedEnd marks the end of the work that symmem has queued. symmem queries it instead of the
	// stream. It is recorded with Stream.Mu held.
	queuedEnd Event
	// queryMu is read-locked while CUDA is asked whether the stream is being captured.
	queryMu        ranked.RWMutex[adoptionQueryMu]
	queriesStopped bool // the owner may destroy the stream; guarded by queryMu
	Recording      bool // work is being added to the owner's capture; guarded by Stream.Mu
}

// Adopted reports whether another library owns the stream.
func (a *adoptedState) Adopted() bool { return a.isAdopted }

// IsCapturing reports whether an adopted stream is being captured. For CUDA's default stream, it
// also returns true while the capture of another stream prevents its use. It returns false for
// other streams, and after stopQueries.
func (a *adoptedState) IsCapturing() (bool, error) {
	a.queryMu.RLock()
	defer a.queryMu.RUnlock()
	if !a.isAdopted || a.queriesStopped {
		return false, nil
	}

	device := a.streams.GPU
	status, err := gpu.Get(device, func() (cuda.CaptureStatus, error) {
		return device.CUDA.CaptureStatus(a.handle)
	})
	if errors.Is(err, cuda.ErrCaptureImplicit) { // another stream's capture prevents the use
		return true, nil
	}

	return status != cuda.CaptureNone, err
}

// stopQueries prevents further queries of the stream, and waits for running ones.
func (a *adoptedState) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.queriesStopped = true
}

// recordEndEvent records queuedEnd after all work on the stream, including the owner's. If the
// stream is being captured, it records nothing and returns true. It calls beforeReplace before it
// replaces the event's old point. The caller must hold Stream.Mu.
func (a *adoptedState) recordEndEvent(beforeReplace func() error) (bool, error) {
	device := a.streams.GPU
	for {
		// CUDA allows no EventRecord on the default stream while any stream is being captured.
		capturing, err := a.IsCapturing()
		if capturing || err != nil {
			return capturing, err
		}

		point, err := a.streams.NewPoint()
		if err != nil {
			return false, err
		}

		err = device.Do(func() error { return device.CUDA.EventRecord(point.Handle, a.handle) })
		if err != nil {
			return false, err
		}

		// The owner may have begun a capture since the first check. The event is then part of the
		// capture, and must not be queried.
		capturing, err = a.IsCapturing()
		if capturing || err != nil {
			return capturing, err
		}

		// The capture may even have ended since. Only a query shows that it contains the event.
		_, queryErr := point.isReached()
		if errors.Is(queryErr, cuda.ErrCapturedEvent) {
			continue // record another event
		}

		// Other errors are those of the device, which a later query of queuedEnd returns.
		err = beforeReplace()
		a.queuedEnd.setPoint(point) // even after an error, which concerns only the groups' events
		return false, err
	}
}
