package nccl

import (
	"errors"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
)

// stages has channels that are closed as the teardown of a communicator proceeds, in this order.
type stages struct {
	gpu     *gpu.GPU
	cfg     *driver.GroupConfig
	plane   control.Plane
	timeout time.Duration

	// ended is closed when the group has failed or was closed.
	ended chan struct{}
	// kernelsEnded is closed when the group's kernels have ended and its windows are deregistered, or
	// when kernels do not end in time.
	kernelsEnded chan struct{}
	// released is closed when everything is freed that graphs of other libraries do not use.
	released chan struct{}
	// tornDown is closed when everything is freed, including NCCL's communicator.
	tornDown chan struct{}
}

func newStages(
	g *gpu.GPU, cfg *driver.GroupConfig, plane control.Plane, timeout time.Duration,
) stages {
	return stages{
		gpu: g, cfg: cfg, plane: plane, timeout: timeout,
		ended: make(chan struct{}), kernelsEnded: make(chan struct{}),
		released: make(chan struct{}), tornDown: make(chan struct{}),
	}
}

// await waits for a stage, or only checks it if waiting is hopeless. After a fault a stage is
// reached soon or never; after Close it may take long on a busy machine. If released waits for
// unfinished work (gpu.GPU.AddUnfinished), the wait is short, because that work has been waited for
// before.
func (s *stages) await(stage chan struct{}, hopeless bool) error {
	limit := 4 * gpu.EndingTime
	switch {
	case hopeless:
		limit = 0
	case stage == s.released && s.gpu.KeepsMemory():
		limit = gpu.EndingTime
	case errors.Is(s.plane.Cause(), driver.ErrClosed):
		limit = max(limit, s.timeout)
	}
	select {
	case <-stage:
		return nil // even if limit is 0
	default:
	}
	select {
	case <-stage:
		return nil
	case <-time.After(limit):
		return &driver.TimeoutError{
			Doing: "ending NCCL's communicator of group " + s.cfg.Name(), Waited: limit,
		}
	}
}
