package nccl

import (
	"errors"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
)

// stages are the steps of the end of a communicator that others wait for, in their order.
type stages struct {
	gpu     *gpu.GPU
	cfg     *driver.GroupConfig
	plane   control.Plane
	timeout time.Duration

	// ended is closed when the group has failed or is closed.
	ended chan struct{}
	// kernelsEnded is closed when the group's kernels have ended and its windows are gone, or when
	// kernels are late: then the windows end with them.
	kernelsEnded chan struct{}
	// released is closed when nothing is left but what graphs of other libraries hold.
	released chan struct{}
	// tornDown is closed when that and NCCL's communicator are gone, too.
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

// await waits for a stage; not at all if that is hopeless. After a fault a stage is reached soon or
// never. After Close it takes as long as a busy machine needs. The last stages wait for work that
// was left behind (gpu.GPU.Leave), which has already been waited for.
func (s *stages) await(stage chan struct{}, hopeless bool) error {
	patience := 4 * gpu.EndingTime
	switch {
	case hopeless:
		patience = 0
	case stage == s.released && s.gpu.Keeps():
		patience = gpu.EndingTime
	case errors.Is(s.plane.Cause(), driver.ErrClosed):
		patience = max(patience, s.timeout)
	}
	select {
	case <-stage:
		return nil // also if there is no time
	default:
	}
	select {
	case <-stage:
		return nil
	case <-time.After(patience):
		return &driver.TimeoutError{
			Doing: "ending NCCL's communicator of group " + s.cfg.Name(), Waited: patience,
		}
	}
}
