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

// stages announces the progress of a teardown, which frees a failed or closed group in the
// background. Each channel is closed when its event occurs.
type stages struct {
	gpu   *gpu.GPU
	cfg   *driver.GroupConfig
	plane control.Plane // its Cause is the error that has ended the group

	// The teardown closes the following channels, usually in this order.

	groupEnded chan struct{} // the group has failed or has been closed
	// kernelsEnded means that kernels have exited and NCCL has released the windows, or that the
	// teardown has given up on either.
	kernelsEnded chan struct{}
	memoryFreed  chan struct{} // only graphs of other libraries still use memory
	allFreed     chan struct{} // NCCL's communicator has been freed, too

	rankLost     chan struct{} // a rank has died, so calls to NCCL may never return
	noteRankLost func()        // closes rankLost once

	// closed is closed by Close. Until then, even in a failed group, the program's kernels may access
	// memory of other ranks.
	closed     chan struct{}
	noteClosed func() // closes closed once
}

func newStages(g *gpu.GPU, cfg *driver.GroupConfig, plane control.Plane) stages {
	rankLost := make(chan struct{})
	closed := make(chan struct{})
	return stages{
		gpu: g, cfg: cfg, plane: plane,
		groupEnded: make(chan struct{}), kernelsEnded: make(chan struct{}),
		memoryFreed: make(chan struct{}), allFreed: make(chan struct{}),
		rankLost: rankLost, noteRankLost: sync.OnceFunc(func() { close(rankLost) }),
		closed: closed, noteClosed: sync.OnceFunc(func() { close(closed) }),
	}
}

// await waits until stage, one of the channels of s, is closed. After a time limit, it returns a
// TimeoutError. If checkOnly is set, it does not wait.
func (s *stages) await(stage chan struct{}, checkOnly bool) error {
	var limit time.Duration
	if !checkOnly {
		limit = s.waitLimit(stage)
	}

	select { // with a limit of 0, the select below could prefer the timer to a closed stage
	case <-stage:
		return nil
	default:
	}

	ranked.AssertMayWait()
	begin := time.Now()
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
			return &driver.TimeoutError{
				InCall: "ending NCCL's communicator of group " + s.cfg.Name(),
				Waited: time.Since(begin).Round(time.Millisecond),
			}
		}
	}
}

// waitLimit returns how long await waits if no rank is lost.
func (s *stages) waitLimit(stage chan struct{}) time.Duration {
	const kernelWaits = 4 // enough for a teardown, which can wait for kernels several times
	limit := kernelWaits * gpu.KernelEndTimeout
	isClosed := errors.Is(s.plane.Cause(), driver.ErrClosed)
	switch {
	case stage == s.memoryFreed && s.gpu.MustKeepMemory(): // unfinished work prevents this stage
		return gpu.KernelEndTimeout
	case isClosed: // slow ranks may still complete their work
		return max(limit, s.cfg.Timeout.Get())
	default: // a failed group reaches a stage soon or never
		return limit
	}
}
