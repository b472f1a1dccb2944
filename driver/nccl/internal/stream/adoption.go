package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState is the state of an adopted stream, which belongs to another library (the owner), and
// the zero value for other streams.
//
// The owner can begin a capture at any time: CUDA then records work into a graph instead of running
// the work. A query of the stream would invalidate the capture. symmem therefore records the event
// queuedEnd after its work, and queries only this event.
type adoptedState struct {
	isAdopted      bool
	streams        *Streams
	handle         cuda.Stream
	queuedEnd      Event                           // written with Stream.Mu held
	Recording      bool                            // into a capture of the owner; guarded by Stream.Mu
	queryMu        ranked.RWMutex[adoptionQueryMu] // read-locked by queries of the capture status
	queriesStopped bool                            // guarded by queryMu
}

// Adopted reports whether another library owns the stream.
func (a *adoptedState) Adopted() bool { return a.isAdopted }

// IsCapturing reports whether an adopted stream is being captured. CUDA's default stream also
// counts as captured while a capture of another stream blocks it. IsCapturing returns false for
// streams that are not adopted, and after stopQueries.
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
	isBlockedDefaultStream := errors.Is(err, cuda.ErrCaptureImplicit)
	if isBlockedDefaultStream {
		return true, nil
	}

	return status != cuda.CaptureNone, err
}

// stopQueries prevents further queries and waits for running ones. The owner may destroy the stream
// afterwards.
func (a *adoptedState) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.queriesStopped = true
}

// recordPoint records a new point after all work on the stream. If isCapturing is true, the caller
// must not use the point.
func (a *adoptedState) recordPoint() (point *Point, isCapturing bool, err error) {
	// EventRecord would fail on the default stream during the capture of another stream.
	isCapturing, err = a.IsCapturing()
	if isCapturing || err != nil {
		return nil, isCapturing, err
	}

	point, err = a.streams.NewPoint()
	if err != nil {
		return nil, false, err
	}

	device := a.streams.GPU
	err = device.Do(func() error { return device.CUDA.EventRecord(point.Handle, a.handle) })
	if err != nil {
		return nil, false, err
	}

	isCapturing, err = a.IsCapturing() // a capture may have begun since the first check
	return point, isCapturing, err
}
