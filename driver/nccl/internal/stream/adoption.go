package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoptedState is the state of a stream that another library owns. In other streams, it is the zero
// value.
type adoptedState struct {
	isAdopted bool // whether another library owns the stream
	streams   *Streams
	handle    cuda.Stream
	// queuedEnd is recorded after the work that symmem has queued. Queries use this event instead
	// of the stream. Stream.Mu is held while the event is recorded.
	queuedEnd Event
	// queryMu is read-locked while IsCapturing queries CUDA. A goroutine that needs Stream.Mu and
	// queryMu locks Stream.Mu first.
	queryMu        ranked.RWMutex[adoptionQueryMu]
	queriesStopped bool // whether the stream must not be queried; guarded by queryMu
	// Recording is set while work is being added to a capture that the owner began. Stream.Mu
	// guards Recording.
	Recording bool
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

// stopQueries waits for running queries and prevents later queries. The owner may then destroy the
// stream.
func (a *adoptedState) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.queriesStopped = true
}

// recordEndEvent records a new event after all work on an open adopted stream, unless the stream is
// being captured. It calls beforeReplace before the new event replaces queuedEnd. The caller must
// hold Stream.Mu.
func (a *adoptedState) recordEndEvent(beforeReplace func() error) (capturing bool, err error) {
	device := a.streams.GPU
	for {
		// On the default stream, CUDA allows no EventRecord while any stream is being captured.
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
		// If the owner has begun a capture since then, the new event must not be queried before the
		// capture has ended.
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
