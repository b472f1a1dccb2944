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
	plane control.Plane // its Cause is why the group has ended

	// The teardown closes the following channels, usually in this order.

	groupEnded chan struct{} // the group has failed or has been closed
	// kernelsEnded means that kernels have exited and windows are deregistered from NCCL, or that the
	// wait for them is over.
	kernelsEnded chan struct{}
	memoryFreed  chan struct{} // only graphs of other libraries still use memory
	allFreed     chan struct{} // NCCL's communicator has been freed, too

	rankLost     chan struct{} // a rank has died; calls to NCCL may never return
	noteRankLost func()        // closes rankLost once

	// closed means that the program has closed the group. Before, even in a failed group, the
	// program's kernels may access memory of other ranks.
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

// await waits for a stage, one of the channels of s. After a time limit, it returns a TimeoutError.
// The limit is 0 if checkOnly is set.
func (s *stages) await(stage chan struct{}, checkOnly bool) error {
	limit := time.Duration(0)
	if !checkOnly {
		limit = s.waitLimit(stage)
	}

	select { // an expired timer must not hide a closed stage
	case <-stage:
		return nil
	default:
	}

	ranked.AssertMayWait()
	begin := time.Now()
	rankLost := s.rankLost // set to nil once closed, so that select ignores it
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-stage:
			return nil
		case <-rankLost:
			rankLost = nil
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

// waitLimit returns a time limit for groups without lost ranks. A failed group reaches a stage soon
// or never. After Close, slow ranks get at least the group's timeout.
func (s *stages) waitLimit(stage chan struct{}) time.Duration {
	// A teardown can wait for kernels several times, for up to KernelEndTimeout each.
	limit := 4 * gpu.KernelEndTimeout
	isClosed := errors.Is(s.plane.Cause(), driver.ErrClosed)
	switch {
	case stage == s.memoryFreed && s.gpu.MustKeepMemory(): // unfinished work prevents this stage
		return gpu.KernelEndTimeout
	case isClosed:
		return max(limit, s.cfg.Timeout.Get())
	default:
		return limit
	}
}
