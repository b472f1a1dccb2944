package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState is the state of an adopted stream, which belongs to another library (the owner). For
// other streams, it is zero.
//
// The owner can begin a capture at any time: CUDA then records work into a graph instead of running
// it. To ask CUDA whether the stream is idle would invalidate the capture, so symmem queries
// queuedEnd instead, an event that it records after its work.
type adoptedState struct {
	isAdopted      bool
	streams        *Streams
	handle         cuda.Stream
	queuedEnd      Event                           // recorded with Stream.Mu held
	Recording      bool                            // in a capture of the owner; guarded by Stream.Mu
	queryMu        ranked.RWMutex[adoptionQueryMu] // read-locked by queries of the capture status
	queriesStopped bool                            // guarded by queryMu
}

// Adopted reports whether another library owns the stream.
func (a *adoptedState) Adopted() bool { return a.isAdopted }

// IsCapturing reports whether an adopted stream is being captured or, in the case of CUDA's default
// stream, cannot be used because of a capture of another stream. It returns false for streams that
// are not adopted, and after stopQueries.
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
	isBlocked := errors.Is(err, cuda.ErrCaptureImplicit) // the default stream, by another capture
	if isBlocked {
		return true, nil
	}

	return status != cuda.CaptureNone, err
}

// stopQueries prevents further queries and waits for running ones, because the owner may then
// destroy the stream.
func (a *adoptedState) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.queriesStopped = true
}

// recordEndEvent calls beforeMove, and then moves queuedEnd behind all work on the stream,
// including the owner's. During a capture, it only returns true. The caller must hold Stream.Mu.
func (a *adoptedState) recordEndEvent(beforeMove func() error) (isCapturing bool, err error) {
	for {
		var point *Point
		point, isCapturing, err = a.recordPoint()
		if isCapturing || err != nil {
			return isCapturing, err
		}

		// Retry if the point was recorded in a short capture that has ended already. Other errors of
		// the query are device errors, which the next query of queuedEnd returns, too.
		_, queryErr := point.isReached()
		if errors.Is(queryErr, cuda.ErrCapturedEvent) {
			continue
		}

		err = beforeMove()
		a.queuedEnd.setPoint(point) // valid even if beforeMove has failed
		return false, err
	}
}

// recordPoint records a new point after all work on the stream. During a capture, it returns true,
// and the caller must not use the point.
func (a *adoptedState) recordPoint() (point *Point, isCapturing bool, err error) {
	// Check first, because EventRecord fails on the default stream while any stream is captured.
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
