package nccl

import (
	"errors"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// A runTimer measures how long calls of a group take on the GPU, including their waits for other
// ranks. For example, it times an AllReduce as follows:
//
//  1. start takes an unused sample, which has two events of CUDA. It records the first event on the
//     stream, before the call.
//  2. The call is queued. Then stop records the second event.
//  3. Later, when the GPU has reached the second event, collect reads the time between the events,
//     and adds it to a driver.Meter.
//
// The Meter selects the calls to time, which are only some of all calls.

// runTimer times calls of a group. The group's lock guards it. Methods with a *cuda.Driver require
// that the CUDA context is current.
type runTimer struct {
	gpu *gpu.GPU
	// samples has a fixed size to avoid allocations. Calls are not timed while all samples are in
	// use.
	samples         [16]runSample
	unfinishedCount atomic.Int32 // number of samples in use; may be read without the lock
	isClosed        bool         // no more calls are timed
}

// runSample measures one call.
type runSample struct {
	begin, end cuda.Event    // recorded before and after the call; 0 before the first use
	meter      *driver.Meter // gets the time; nil if the sample is not in use
	hasEnd     bool          // end has been recorded
}

// start marks the beginning of a call in a stream, if meter selects the call. It returns nil if the
// call is not timed. The caller must pass the result to stop after the call.
func (t *runTimer) start(
	meter *driver.Meter, cudaStream cuda.Stream, api *cuda.Driver,
) *runSample {
	if meter == nil || !meter.Sample() {
		return nil
	}

	t.collect(api)
	sample := t.findUnused()
	if sample == nil {
		return nil
	}

	// The call must run even if it cannot be timed, so errors are ignored.
	if sample.createEvents(api) != nil {
		return nil
	}

	if api.EventRecord(sample.begin, cudaStream) != nil {
		return nil
	}

	sample.meter = meter
	sample.hasEnd = false
	t.unfinishedCount.Add(1)
	return sample
}

// findUnused returns a sample that is not in use, or nil.
func (t *runTimer) findUnused() *runSample {
	if t.isClosed {
		return nil
	}

	for i := range t.samples {
		if t.samples[i].meter == nil {
			return &t.samples[i]
		}
	}

	return nil
}

// createEvents creates the events that do not exist yet.
func (sample *runSample) createEvents(api *cuda.Driver) (err error) {
	const withTiming = 0 // no flags
	for _, event := range []*cuda.Event{&sample.begin, &sample.end} {
		if *event != 0 {
			continue
		}

		if *event, err = api.EventCreate(withTiming); err != nil {
			return err
		}
	}

	return nil
}

// stop marks the end of the call for which start has returned sample. It does nothing if sample is
// nil.
func (t *runTimer) stop(sample *runSample, cudaStream cuda.Stream, api *cuda.Driver) {
	if sample == nil || sample.meter == nil { // close may have discarded it
		return
	}

	if api.EventRecord(sample.end, cudaStream) != nil {
		t.discard(sample)
		return
	}

	sample.hasEnd = true
}

// discard makes the sample unused. It keeps the events for the next use.
func (t *runTimer) discard(sample *runSample) {
	if sample.meter != nil {
		sample.meter = nil
		t.unfinishedCount.Add(-1)
	}
}

// collect adds the times of calls that have ended to their meters, and discards the samples.
func (t *runTimer) collect(api *cuda.Driver) {
	if t.unfinishedCount.Load() == 0 {
		return
	}

	for i := range t.samples {
		sample := &t.samples[i]
		if !sample.hasEnd || sample.meter == nil {
			continue
		}

		hasEnded, queryErr := api.EventQuery(sample.end)
		isRunning := queryErr == nil && !hasEnded
		// EventQuery is not permitted during a capture in global mode. Try again later.
		mustRetry := errors.Is(queryErr, cuda.ErrCaptureUnsupported)
		if isRunning || mustRetry {
			continue
		}

		duration, elapsedErr := api.EventElapsedTime(sample.begin, sample.end)
		if queryErr == nil && elapsedErr == nil {
			sample.meter.Add(duration)
		}

		t.discard(sample) // even after an error, so that the sample can be used again
	}
}

// collectUnlessBusy calls collect, or does nothing if the group's lock mu is held.
func (t *runTimer) collectUnlessBusy(mu *groupLock) {
	if t.unfinishedCount.Load() == 0 {
		return
	}

	if !mu.TryLock() {
		return
	}

	defer mu.Unlock()
	_ = t.gpu.With(func(api *cuda.Driver) error {
		t.collect(api)
		return nil
	})
}

// startSteps is start for a call of a two-level group. Such a call runs in steps, which are calls
// of other groups. startSteps locks the stream and the group. If the stream is closed or capturing,
// the call is not timed.
func (t *runTimer) startSteps(
	mu *groupLock, meter *driver.Meter, s *stream.Stream,
) (sample *runSample) {
	if meter == nil {
		return nil
	}

	s.Mu.Lock()
	defer s.Mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	if s.Closed() || s.Capture != nil {
		return nil
	}

	_ = t.gpu.With(func(api *cuda.Driver) error {
		sample = t.start(meter, s.CUDA, api)
		return nil
	})
	return sample
}

// stopSteps is stop for a call for which startSteps has returned sample.
func (t *runTimer) stopSteps(mu *groupLock, sample *runSample, s *stream.Stream) {
	if sample == nil {
		return
	}

	s.Mu.Lock()
	defer s.Mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	if s.Closed() || s.Capture != nil {
		t.discard(sample)
		return
	}

	_ = t.gpu.With(func(api *cuda.Driver) error {
		t.stop(sample, s.CUDA, api)
		return nil
	})
}

// close collects the last times and destroys the events. The caller must hold the group's lock.
func (t *runTimer) close() error {
	t.isClosed = true
	if t.samples[0].begin == 0 {
		return nil // no sample has events, because findUnused returns the first unused one
	}

	return t.gpu.With(func(api *cuda.Driver) error {
		t.collect(api)
		var errs []error
		for i := range t.samples {
			t.discard(&t.samples[i])
			destroyErr := t.samples[i].destroyEvents(api)
			errs = append(errs, destroyErr)
		}

		return errors.Join(errs...)
	})
}

// destroyEvents destroys the events that exist.
func (sample *runSample) destroyEvents(api *cuda.Driver) error {
	var errs []error
	for _, event := range []*cuda.Event{&sample.begin, &sample.end} {
		if *event != 0 {
			errs = append(errs, api.EventDestroy(*event))
		}

		*event = 0
	}

	return errors.Join(errs...)
}
