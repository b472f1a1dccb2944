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

// When a group has failed or has been closed, its teardown frees the group's communicator in the
// background. On the way, it reaches stages: first, the group has ended. Then its kernels have
// ended. Then its memory is free. Each stage is a channel that the teardown closes, so that other
// goroutines can wait for it.

// stages holds the channels of the stages, and channels for two other events.
type stages struct {
	gpu   *gpu.GPU
	cfg   *driver.GroupConfig
	plane control.Plane // its Cause is why the group has ended

	// The teardown closes the following channels, usually in this order.

	// groupEnded is closed when the group has failed or has been closed.
	groupEnded chan struct{}
	// kernelsEnded is closed when the group's kernels have exited and its windows (memory that is
	// registered with NCCL) have been deregistered. It is also closed if that takes too long.
	kernelsEnded chan struct{}
	// memoryFreed is closed when everything has been freed except what graphs of other libraries
	// use.
	memoryFreed chan struct{}
	// allFreed is closed when everything has been freed, including NCCL's communicator.
	allFreed chan struct{}

	// rankLost is closed when a rank of the group has ended without leaving the world (all ranks).
	// A call to NCCL may never return after that.
	rankLost     chan struct{}
	noteRankLost func() // closes rankLost once

	// closed is closed when the program has closed the group. Until then, the program's kernels may
	// access memory of other ranks, even after a failure.
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

// await waits until a stage, one of the channels of s, is closed. After a time limit, it returns a
// TimeoutError. If checkOnly is set, the limit is 0.
func (s *stages) await(stage chan struct{}, checkOnly bool) error {
	limit := time.Duration(0)
	if !checkOnly {
		limit = s.waitLimit(stage)
	}

	select { // first, because the loop below might see an expired timer before the closed stage
	case <-stage:
		return nil
	default:
	}

	ranked.AssertMayWait()
	begin := time.Now()
	rankLost := s.rankLost // nil once the loop has seen that it is closed, so that select ignores it
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-stage:
			return nil
		case <-rankLost:
			rankLost = nil
			// From now on, the stage is reached soon or never.
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

// waitLimit returns the time limit of a wait for a stage while no rank is lost.
//
// A group that has failed reaches a stage soon or never, so its limit is short. After Close, the
// limit is at least the group's timeout.
func (s *stages) waitLimit(stage chan struct{}) time.Duration {
	// A teardown can wait for kernels more than once, for up to KernelEndTimeout each.
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
