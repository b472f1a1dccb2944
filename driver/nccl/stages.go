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

// stages holds channels that are closed when a communicator reaches a stage of its teardown, and
// two channels for other events.
type stages struct {
	gpu   *gpu.GPU
	cfg   *driver.GroupConfig
	plane control.Plane // its Cause is why the group has ended

	// The teardown closes the following channels, usually in this order.

	// groupEnded is closed when the group has failed or has been closed.
	groupEnded chan struct{}
	// kernelsEnded is closed when the group's kernels have exited and its windows have been
	// deregistered. It is also closed if that takes too long.
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

	// closed is closed when the program has closed the group. Until then, its kernels may use
	// addresses of peers, even after a fault.
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
//
// A group that has failed or has lost a rank reaches a stage soon or never, so its limit is short.
// After Close, the limit is at least the group's timeout.
func (s *stages) await(stage chan struct{}, checkOnly bool) error {
	limit := 4 * gpu.KernelEndTimeout
	switch {
	case checkOnly:
		limit = 0
	case stage == s.memoryFreed && s.gpu.MustKeepMemory(): // unfinished work prevents this stage
		limit = gpu.KernelEndTimeout
	case errors.Is(s.plane.Cause(), driver.ErrClosed):
		limit = max(limit, s.cfg.Timeout.Get())
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
