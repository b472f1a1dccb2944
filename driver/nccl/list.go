package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// canGroup reports whether NCCL can launch the call in a list, as part of one NCCL group.
func canGroup(p *plan) bool {
	return p.kernel == nil && p.parts == nil && p.listedPlans == nil &&
		p.Path != driver.PathTwoLevel && !p.Operation.PointToPoint() && !p.hasFactor()
}

func listMembers(c *communicator, plans []driver.Plan) ([]*plan, error) {
	members := make([]*plan, len(plans))
	for i, p := range plans {
		member, ok := p.(*plan)
		if !ok || member.c != c {
			return nil, errForeignPlan
		}

		direct := member.Path == driver.PathDirect
		if !direct && !canGroup(member) || member.Path != plans[0].Prepared().Path {
			return nil, fmt.Errorf("a list with %v on the %v path: %w", member.Operation, member.Path,
				driver.ErrUnsupported)
		}

		members[i] = member
	}

	return members, nil
}

// prepareGather prepares the kernels of a list on the direct path. It returns ErrUnsupported if a
// call is not a gather.
func prepareGather(p *plan) error {
	l := directLaunch(p)
	calls := make([]*driver.Call, len(p.listedPlans))
	l.Symmetric = true
	for i, member := range p.listedPlans {
		calls[i] = &member.Call
		window := member.ownWindow(member.RecvWindow)
		l.Symmetric = l.Symmetric && window != nil && window.isMappedEverywhere
	}

	rows, err := kernels.ChooseRows(l, calls)
	if err != nil {
		return fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
	}

	return prepareSteps(p, rows)
}

// queueList queues the calls of a list. In a group of one rank, each call is a separate copy.
func queueList(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	var calls []nccl.Invocation
	for _, member := range p.listedPlans {
		switch {
		case len(p.c.cfg.Ranks) == 1:
			if err := copyLocally(member, s.CUDA, gpu); err != nil {
				return err
			}
		case member.singleCall.Prepared():
			calls = append(calls, member.singleCall)
		case member.guard != nil:
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
