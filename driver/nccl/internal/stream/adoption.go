package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState is used only for streams that another library owns.
type adoptedState struct {
	isAdopted bool
	streams   *Streams
	handle    cuda.Stream
	// queuedEnd is recorded after work that symmem queues, with Stream.Mu held. It is queried
	// instead of the stream.
	queuedEnd Event
	// queryMu is read-locked during queries.
	queryMu        ranked.RWMutex[adoptionQueryMu]
	queriesStopped bool // guarded by queryMu
	Recording      bool // work is being added to the owner's capture; guarded by Stream.Mu
}

// Adopted reports whether another library owns the stream.
func (a *adoptedState) Adopted() bool { return a.isAdopted }

// IsCapturing reports whether an adopted stream is being captured. For CUDA's default stream, it
// also returns true while the capture of another stream prevents its use.
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
	if errors.Is(err, cuda.ErrCaptureImplicit) {
		return true, nil
	}
	return status != cuda.CaptureNone, err
}

// stopQueries also waits for running queries.
func (a *adoptedState) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.queriesStopped = true
}

// recordEndEvent records a new queuedEnd after all work, including the owner's, unless the stream
// is being captured. It calls beforeReplace before it replaces the old event. It requires
// Stream.Mu.
func (a *adoptedState) recordEndEvent(beforeReplace func() error) (capturing bool, err error) {
	device := a.streams.GPU
	for {
		// CUDA allows no EventRecord on the default stream while any stream is being captured.
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
		// Do not query the new event if the owner has begun a capture since then.
		if capturing, err = a.IsCapturing(); capturing || err != nil {
			return capturing, err
		}
		if _, err := point.isReached(); !errors.Is(err, cuda.ErrCapturedEvent) {
			err := beforeReplace()
			a.queuedEnd.setPoint(point)
			return false, err
		}
	}
}
