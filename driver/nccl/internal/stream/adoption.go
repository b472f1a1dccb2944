package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState is the additional state of an adopted stream: one that another library, the owner,
// created. For other streams, it is zero.
//
// The owner can destroy the stream or begin a capture at any time. In a capture, CUDA adds new work
// to a graph instead of running it, and forbids some calls. So the methods first ask CUDA whether
// the stream is being captured.
//
// symmem never asks CUDA whether the stream is idle, because this would invalidate a capture that
// the owner is beginning. It records the event queuedEnd after its work instead, and asks whether
// the stream has reached the event's point: the position in the stream at which it was recorded.
type adoptedState struct {
	isAdopted bool
	streams   *Streams
	handle    cuda.Stream
	queuedEnd Event // recorded with Stream.Mu held
	Recording bool  // work is being added to the owner's capture; guarded by Stream.Mu
	// queryMu is read-locked while CUDA is asked whether the stream is being captured.
	queryMu        ranked.RWMutex[adoptionQueryMu]
	queriesStopped bool // the owner may destroy the stream; guarded by queryMu
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

// recordEndEvent moves queuedEnd after all work on the stream, including the owner's. It calls
// beforeMove just before that. If the stream is being captured, it does not move the event, and
// returns true. The caller must hold Stream.Mu.
func (a *adoptedState) recordEndEvent(beforeMove func() error) (bool, error) {
	for {
		point, isCapturing, err := a.recordPoint()
		if isCapturing || err != nil {
			return isCapturing, err
		}

		// A capture may have begun before the point was recorded, and may have ended since. Only a
		// query of the point shows this: a point in a capture cannot be queried.
		_, queryErr := point.isReached()
		if errors.Is(queryErr, cuda.ErrCapturedEvent) {
			continue // record another point
		}

		// Other errors are those of the device, which a later query of queuedEnd returns.
		err = beforeMove()
		a.queuedEnd.setPoint(point) // even after an error, which concerns only the groups' events
		return false, err
	}
}

// recordPoint records a new point after all work on the stream. If the stream is being captured, it
// returns true, and the caller must not use the point.
func (a *adoptedState) recordPoint() (point *Point, isCapturing bool, err error) {
	// CUDA allows no EventRecord on the default stream while any stream is being captured.
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

	// The owner may have begun a capture since the first check. The point is then part of the
	// capture, and must not be queried.
	isCapturing, err = a.IsCapturing()
	return point, isCapturing, err
}
