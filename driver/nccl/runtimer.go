package nccl

import (
	"errors"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// runTimer measures how long calls run on the GPU, including waits for other ranks. start and stop
// record CUDA events before and after a call. collect adds the time between them to a driver.Meter.
// Methods with a *cuda.Driver need a current CUDA context and the group's lock.
type runTimer struct {
	gpu *gpu.GPU
	mu  *groupLock

	samples   [16]runSample // while all are in use, further calls are not timed
	usedCount atomic.Int32  // samples in use; changed only with the lock
	isClosed  bool
}

// runSample measures one call.
type runSample struct {
	begin, end cuda.Event // created on first use, and then kept for other calls
	state      sampleState
	meter      *driver.Meter // receives the time
}

type sampleState int

const (
	sampleUnused  sampleState = iota
	sampleStarted             // begin has been recorded
	sampleStopped             // end has been recorded
)

// start begins the measurement of a call. The caller must pass the result to stop after the call.
// The result is nil if the meter skips the call, all samples are in use, or CUDA fails.
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

	if sample.createEvents(api) != nil {
		return nil
	}

	if api.EventRecord(sample.begin, cudaStream) != nil {
		return nil
	}

	sample.meter, sample.state = meter, sampleStarted
	t.usedCount.Add(1)
	return sample
}

// findUnused returns an unused sample, or nil if there is none or t is closed.
func (t *runTimer) findUnused() *runSample {
	if t.isClosed {
		return nil
	}

	for i := range t.samples {
		if t.samples[i].state == sampleUnused {
			return &t.samples[i]
		}
	}

	return nil
}

func (sample *runSample) createEvents(api *cuda.Driver) (err error) {
	const noFlags = 0 // so that the events measure times
	for _, event := range []*cuda.Event{&sample.begin, &sample.end} {
		isCreated := *event != 0
		if isCreated {
			continue
		}

		if *event, err = api.EventCreate(noFlags); err != nil {
			return err
		}
	}

	return nil
}

// stop marks the end of a call. sample is the result of start, which may be nil.
func (t *runTimer) stop(sample *runSample, cudaStream cuda.Stream, api *cuda.Driver) {
	if sample == nil || sample.state == sampleUnused { // not timed, or discarded by close
		return
	}

	if api.EventRecord(sample.end, cudaStream) != nil {
		t.discard(sample)
		return
	}

	sample.state = sampleStopped
}

// discard makes the sample unused, but keeps its events.
func (t *runTimer) discard(sample *runSample) {
	if sample.state != sampleUnused {
		sample.meter, sample.state = nil, sampleUnused
		t.usedCount.Add(-1)
	}
}

// collect adds the run times of ended calls to their meters, and discards the samples.
func (t *runTimer) collect(api *cuda.Driver) {
	if t.usedCount.Load() == 0 {
		return
	}

	for i := range t.samples {
		sample := &t.samples[i]
		if sample.state != sampleStopped {
			continue
		}

		hasEnded, queryErr := api.EventQuery(sample.end)
		isRunning := queryErr == nil && !hasEnded
		isCapturing := errors.Is(queryErr, cuda.ErrCaptureUnsupported) // in global mode: query later
		if isRunning || isCapturing {
			continue
		}

		duration, elapsedErr := api.EventElapsedTime(sample.begin, sample.end)
		if queryErr == nil && elapsedErr == nil {
			sample.meter.Add(duration)
		}

		t.discard(sample)
	}
}

// collectUnlessBusy calls collect unless another goroutine holds the group's lock.
func (t *runTimer) collectUnlessBusy() {
	if t.usedCount.Load() == 0 {
		return
	}

	if !t.mu.TryLock() {
		return
	}

	defer t.mu.Unlock()
	_ = t.gpu.With(func(api *cuda.Driver) error {
		t.collect(api)
		return nil
	})
}

// startSteps is like start, but locks the stream and the group. It is used for a call of a
// two-level group, whose steps are calls of other groups. Calls on closed or capturing streams are
// not timed.
func (t *runTimer) startSteps(meter *driver.Meter, s *stream.Stream) (sample *runSample) {
	if meter == nil {
		return nil
	}

	s.Mu.Lock()
	defer s.Mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.Closed() || s.Capture != nil {
		return nil
	}

	_ = t.gpu.With(func(api *cuda.Driver) error {
		sample = t.start(meter, s.CUDA, api)
		return nil
	})
	return sample
}

// stopSteps is stop for a sample of startSteps.
func (t *runTimer) stopSteps(sample *runSample, s *stream.Stream) {
	if sample == nil {
		return
	}

	s.Mu.Lock()
	defer s.Mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
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
	hasEvents := t.samples[0].begin != 0 // samples are used in their order
	if !hasEvents {
		return nil
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
