package nccl

import (
	"errors"
	"sync"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
	"symmem/internal/ranked"
)

// stages contains channels that are closed when the teardown of a failed or closed group reaches a
// stage, and channels for other events.
type stages struct {
	gpu   *gpu.GPU
	cfg   *driver.GroupConfig
	plane control.Plane // its Cause is driver.ErrClosed, or the failure of the group

	// The teardown closes the following channels.

	groupEnded   chan struct{} // the group has failed or has been closed
	kernelsEnded chan struct{} // the teardown no longer waits for kernels that use windows
	memoryFreed  chan struct{} // the teardown now waits only for graphs of other libraries
	allFreed     chan struct{} // the teardown has ended

	// Other functions close the following channels.

	rankLost     chan struct{} // a rank has died, so calls to NCCL may never return
	noteRankLost func()        // closes rankLost once

	closeCalled     chan struct{} // the program has called Close
	noteCloseCalled func()        // closes closeCalled once
}

func newStages(g *gpu.GPU, cfg *driver.GroupConfig, plane control.Plane) stages {
	rankLost := make(chan struct{})
	closeCalled := make(chan struct{})
	return stages{
		gpu: g, cfg: cfg, plane: plane,
		groupEnded: make(chan struct{}), kernelsEnded: make(chan struct{}),
		memoryFreed: make(chan struct{}), allFreed: make(chan struct{}),
		rankLost: rankLost, noteRankLost: sync.OnceFunc(func() { close(rankLost) }),
		closeCalled: closeCalled, noteCloseCalled: sync.OnceFunc(func() { close(closeCalled) }),
	}
}

// check returns nil if stage (a channel of s) is closed, and otherwise a TimeoutError.
func (s *stages) check(stage chan struct{}) error {
	select {
	case <-stage:
		return nil
	default:
		return s.timeoutError(time.Now())
	}
}

// await waits until stage is closed. After a time limit, it returns a TimeoutError.
func (s *stages) await(stage chan struct{}) error {
	limit := s.waitLimit(stage)
	begin := time.Now()
	if s.check(stage) == nil {
		return nil
	}

	ranked.AssertMayWait()
	rankLost := s.rankLost
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-stage:
			return nil
		case <-rankLost:
			rankLost = nil // select ignores a nil channel
			remaining := limit - time.Since(begin)
			timer.Reset(min(remaining, gpu.KernelEndTimeout))
		case <-timer.C:
			return s.timeoutError(begin)
		}
	}
}

func (s *stages) timeoutError(begin time.Time) error {
	return &driver.TimeoutError{
		InCall: "ending NCCL's communicator of group " + s.cfg.Name(),
		Waited: time.Since(begin).Round(time.Millisecond),
	}
}

// waitLimit returns how long await waits if no rank is lost.
func (s *stages) waitLimit(stage chan struct{}) time.Duration {
	const maxKernelWaits = 4 // waits for kernels in a teardown
	limit := maxKernelWaits * gpu.KernelEndTimeout
	isClosed := errors.Is(s.plane.Cause(), driver.ErrClosed)
	switch {
	case stage == s.memoryFreed && s.gpu.MustKeepMemory(): // the teardown may never free memory
		return gpu.KernelEndTimeout
	case isClosed: // without a failure, so slow ranks may still complete their work
		return max(limit, s.cfg.Timeout.Get())
	default:
		return limit
	}
}
