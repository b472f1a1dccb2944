package nccl

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// newList returns a plan that runs several plans together.
func newList(c *communicator, plans []driver.Plan) (*plan, error) {
	listed, err := convertPlans(c, plans)
	if err != nil {
		return nil, err
	}

	cache := listed[0].cachedList
	if cache != nil {
		if list := cache.Load(); list != nil && slices.Equal(list.listedPlans, listed) {
			return list, nil
		}
	}

	list := &plan{c: c, listedPlans: listed, Call: driver.ListOf(plans)}
	if list.Path != driver.PathDirect {
		return list, nil
	}

	if err := prepareGather(list); err != nil {
		return nil, err
	}

	if cache != nil {
		cache.Store(list)
	}

	return list, nil
}

// convertPlans converts the plans of a list, or returns an error if they cannot run together.
func convertPlans(c *communicator, plans []driver.Plan) ([]*plan, error) {
	listed := make([]*plan, 0, len(plans))
	for _, driverPlan := range plans {
		p, ok := driverPlan.(*plan)
		if !ok || p.c != c {
			return nil, errForeignPlan
		}

		listed = append(listed, p)
		if p.Path != listed[0].Path || !canList(p) {
			return nil, fmt.Errorf("a list with %v on the %v path: %w", p.Operation, p.Path,
				driver.ErrUnsupported)
		}
	}

	return listed, nil
}

func canList(p *plan) bool {
	switch p.Path {
	case driver.PathDirect:
		return true // except for operations that prepareGather rejects
	case driver.PathTwoLevel:
		return false
	default:
		isMessage := p.Operation.PointToPoint()
		isList := p.listedPlans != nil
		isOneNCCLGroup := p.parts == nil && !p.hasFactor() // a call to NCCL or one NCCL group of calls
		return isOneNCCLGroup && !isMessage && !isList
	}
}

// prepareGather prepares a list on the direct path. It returns ErrUnsupported unless all calls are
// gathers.
func prepareGather(p *plan) error {
	launch := directLaunch(p)
	launch.Symmetric = true
	calls := make([]*driver.Call, len(p.listedPlans))
	for i, listed := range p.listedPlans {
		calls[i] = &listed.Call
		w := listed.ownWindow(listed.RecvWindow)
		if w == nil || !w.isMappedEverywhere {
			launch.Symmetric = false // a rank cannot access all receive buffers
		}
	}

	work, err := kernels.ChooseRows(launch, calls)
	if err != nil {
		return fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
	}

	return prepareSteps(p, work)
}

// queueList queues a list that NCCL runs.
func queueList(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	if len(p.c.cfg.Ranks) == 1 {
		return copyListed(p, s, gpu)
	}

	var calls []nccl.Invocation // for one NCCL group
	for _, listed := range p.listedPlans {
		switch {
		case listed.singleCall.Prepared():
			calls = append(calls, listed.singleCall)
		case listed.guard != nil: // works around the defect nccl.EarlyStart
			if err := listed.guard(s.CUDA, gpu); err != nil {
				return err
			}

			calls = append(calls, listed.guardedCall)
		default: // no calls without data
			calls = append(calls, listed.groupedCalls...)
		}
	}

	if len(calls) == 0 {
		return nil
	}

	return p.c.comm.queueGroup(calls, s.CUDA)
}

// copyListed queues a list in a group of one rank, where each call is a copy.
func copyListed(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	for _, listed := range p.listedPlans {
		if err := copyLocally(listed, s.CUDA, gpu); err != nil {
			return err
		}
	}

	return nil
}
