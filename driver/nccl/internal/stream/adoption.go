package stream

import (
	"errors"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// adoption is the state of a stream that another library owns. In other streams, it is the zero
// value.
type adoption struct {
	adopted bool
	streams *Streams
	handle  cuda.Stream
	// queued marks the end of the work that symmem has queued. CUDA is queried about this event
	// instead of the stream. It is recorded with Stream.Mu held.
	queued Event
	// queryMu is read-locked while CUDA is queried about the stream's capture. It is locked after
	// Stream.Mu.
	queryMu ranked.RWMutex[adoptionQueryMu]
	stopped bool // whether the stream must not be queried; guarded by queryMu
	// Recording is set while work is being added to a capture that the owner began. Stream.Mu
	// guards Recording.
	Recording bool
}

// Adopted reports whether another library owns the stream.
func (a *adoption) Adopted() bool { return a.adopted }

// IsCapturing reports whether an adopted stream is being captured. For CUDA's default stream, it
// also returns true while the capture of another stream prevents its use.
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

// stopQueries waits for running queries and prevents later queries. The owner may then destroy the
// stream.
func (a *adoption) stopQueries() {
	a.queryMu.Lock()
	defer a.queryMu.Unlock()
	a.stopped = true
}

// recordAll records an event after all work on an open adopted stream, unless the stream is being
// captured. It calls recorded before the new event replaces queued. The caller must hold Stream.Mu.
//
// The first check is needed for the default stream, on which nothing may be recorded during any
// capture. The second check detects that the owner has begun a capture since then. The new event
// must not be queried before that capture has ended.
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
