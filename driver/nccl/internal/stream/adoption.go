package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState belongs to an adopted stream. The owner, another library, can begin a capture at any
// time: CUDA then records work into a graph instead of running it.
//
// StreamQuery would invalidate such a capture. symmem therefore records the event queuedEnd after
// symmem's work, and queries only this event.
type adoptedState struct {
	isAdopted      bool
	streams        *Streams
	handle         cuda.Stream
	queuedEnd      Event                           // written with Stream.Mu held
	Recording      bool                            // symmem is adding work to the owner's capture
	queryMu        ranked.RWMutex[adoptionQueryMu] // read-locked during calls of CaptureStatus
	queriesStopped bool                            // guarded by queryMu
}

// Adopted reports whether another library owns the stream.
func (a *adoptedState) Adopted() bool { return a.isAdopted }

// IsCapturing reports whether the owner is capturing an adopted stream. For the default stream, it
// also checks the streams that synchronize with it. It returns false after stopQueries.
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
	isBlockedByCapture := errors.Is(err, cuda.ErrCaptureImplicit)
	if isBlockedByCapture {
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

// recordPoint records a new point after all work on the stream. Do not use the point if isCapturing
// is true.
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
