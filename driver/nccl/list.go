package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// A list is a plan that runs several plans together. For example, three AllReduce plans become one
// NCCL group. On the direct path, which runs symmem's own kernels, a list can only gather tensors
// from all ranks.

// listMembers converts the plans of a list, or returns an error if they cannot run together.
func listMembers(c *communicator, plans []driver.Plan) ([]*plan, error) {
	members := make([]*plan, len(plans))
	for i, p := range plans {
		member, ok := p.(*plan)
		if !ok || member.c != c {
			return nil, errForeignPlan
		}

		members[i] = member
		hasSamePath := member.Path == members[0].Path
		canRun := member.Path == driver.PathDirect || canGroup(member)
		if !hasSamePath || !canRun {
			return nil, fmt.Errorf("a list with %v on the %v path: %w", member.Operation, member.Path,
				driver.ErrUnsupported)
		}
	}

	return members, nil
}

// canGroup reports whether the plan's calls to NCCL can be part of a larger NCCL group.
func canGroup(p *plan) bool {
	return p.kernel == nil && p.parts == nil && p.listedPlans == nil &&
		p.Path != driver.PathTwoLevel && !p.Operation.PointToPoint() && !p.hasFactor()
}

// prepareGather prepares a list on the direct path. It returns ErrUnsupported unless all calls are
// gathers.
func prepareGather(p *plan) error {
	calls := make([]*driver.Call, len(p.listedPlans))
	canAccessAllRanks := true // through the windows of the receive buffers
	for i, member := range p.listedPlans {
		calls[i] = &member.Call
		window := member.ownWindow(member.RecvWindow)
		if window == nil || !window.isMappedEverywhere {
			canAccessAllRanks = false
		}
	}

	launch := directLaunch(p)
	launch.Symmetric = canAccessAllRanks
	work, err := kernels.ChooseRows(launch, calls)
	if err != nil {
		return fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
	}

	return prepareSteps(p, work)
}

// queueList queues the calls of a list on NCCL's paths.
func queueList(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	if len(p.c.cfg.Ranks) == 1 {
		return copyMembers(p, s, gpu)
	}

	var calls []nccl.Invocation // for one NCCL group
	for _, member := range p.listedPlans {
		switch {
		case member.singleCall.Prepared():
			calls = append(calls, member.singleCall)
		case member.guard != nil:
			// Without the guard, the NCCL group could start before earlier work of the stream ends.
			if err := member.guard(s.CUDA, gpu); err != nil {
				return err
			}

			calls = append(calls, member.guardedCall)
		default:
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
