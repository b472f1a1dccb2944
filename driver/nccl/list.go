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
	members, err := listMembers(c, plans)
	if err != nil {
		return nil, err
	}

	cache := members[0].cachedList
	if cache != nil {
		if list := cache.Load(); list != nil && slices.Equal(list.listedPlans, members) {
			return list, nil
		}
	}

	list := &plan{c: c, listedPlans: members, Call: driver.ListOf(plans)}
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

// listMembers converts the plans of a list, or returns an error if they cannot run together.
func listMembers(c *communicator, plans []driver.Plan) ([]*plan, error) {
	members := make([]*plan, 0, len(plans))
	for _, p := range plans {
		member, ok := p.(*plan)
		if !ok || member.c != c {
			return nil, errForeignPlan
		}

		members = append(members, member)
		if member.Path != members[0].Path || !canList(member) {
			return nil, fmt.Errorf("a list with %v on the %v path: %w", member.Operation, member.Path,
				driver.ErrUnsupported)
		}
	}

	return members, nil
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
		isOneGroup := p.parts == nil && !p.hasFactor() // a call to NCCL or one NCCL group of calls
		return isOneGroup && !isMessage && !isList
	}
}

// prepareGather prepares a list on the direct path. It returns ErrUnsupported unless all calls are
// gathers.
func prepareGather(p *plan) error {
	launch := directLaunch(p)
	launch.Symmetric = true
	calls := make([]*driver.Call, len(p.listedPlans))
	for i, member := range p.listedPlans {
		calls[i] = &member.Call
		w := member.ownWindow(member.RecvWindow)
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
		return copyMembers(p, s, gpu)
	}

	var calls []nccl.Invocation // for one NCCL group
	for _, member := range p.listedPlans {
		switch {
		case member.singleCall.Prepared():
			calls = append(calls, member.singleCall)
		case member.guard != nil: // works around the defect nccl.EarlyStart
			if err := member.guard(s.CUDA, gpu); err != nil {
				return err
			}

			calls = append(calls, member.guardedCall)
		default: // no calls for a member without data
			calls = append(calls, member.groupedCalls...)
		}
	}

	if len(calls) == 0 {
		return nil
	}

	return p.c.comm.queueGroup(calls, s.CUDA)
}

// copyMembers queues a list in a group of one rank, where each call is a copy.
func copyMembers(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	for _, member := range p.listedPlans {
		if err := copyLocally(member, s.CUDA, gpu); err != nil {
			return err
		}
	}

	return nil
}
