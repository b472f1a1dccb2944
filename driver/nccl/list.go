package nccl

import (
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// canGroup reports whether the call can be part of a list.
func canGroup(p *plan) bool {
	return p.kernel == nil && p.parts == nil && p.members == nil && p.steps == nil && !p.Operation.PointToPoint() &&
		!p.scales()
}

// queueList queues the calls of a list. A group of one rank copies them one by one.
func queueList(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	var calls []nccl.Invocation
	for _, member := range p.members {
		switch {
		case len(p.c.cfg.Ranks) == 1:
			if err := member.copy(s.CUDA, gpu); err != nil {
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
			calls = append(calls, member.grouped...)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	return queueGroup(p.c.device, calls, s.CUDA)
}
