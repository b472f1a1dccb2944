package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// packElements returns the number of elements of type t in kernels.PackBytes bytes.
func packElements(t driver.DataType) int64 { return kernels.PackBytes / int64(t.Size()) }

// levelStep describes one of the calls that make up a call on the two-level path.
type levelStep struct {
	level *communicator
	path  driver.Path
	call  driver.Call
	offer driver.Offer
}

// refusal returns the reason why a call has no two-level path, or nil.
func (t *twoLevel) refusal(p *plan) error {
	_, err := t.offer(p)
	return err
}

// offer returns the steps of a call on two levels, or the reason why there are none.
func (t *twoLevel) offer(p *plan) ([]levelStep, error) {
	l := t.levels.Load()
	if l == nil {
		return nil, fmt.Errorf("%s: %w", t.missingReason(), driver.ErrUnsupported)
	}
	if err := l.check(&p.Call); err != nil {
		return nil, err
	}
	steps := l.steps(p)
	for i := range steps {
		s := &steps[i]
		s.offer = s.level.Offer(s.call)
		if err := s.offer.Refusal(s.path); err != nil {
			return nil, fmt.Errorf("two levels: %v on the %v path: %w", s.call.Operation, s.path, err)
		}
	}
	return steps, nil
}

// check returns an error unless the levels support a call. Every rank gets the same result.
func (l *levels) check(call *driver.Call) error {
	unit := packElements(call.DataType)
	switch {
	case call.Operation.Reduces() && call.ReduceOp != driver.Sum:
		return fmt.Errorf("two levels compute sums only, not %v: %w", call.ReduceOp,
			driver.ErrUnsupported)
	case call.Operation == driver.AllReduce:
		unit *= int64(l.locals)
	case call.Operation == driver.AllGather:
	default:
		return fmt.Errorf("there is no %v on two levels: %w", call.Operation, driver.ErrUnsupported)
	}
	if call.Count == 0 || call.Count%unit != 0 {
		return fmt.Errorf("on two levels, the number of elements of this call must be a multiple of %d: "+
			"%w", unit, driver.ErrUnsupported)
	}
	return nil
}

// steps returns the steps of a call that check accepts.
func (l *levels) steps(p *plan) []levelStep {
	call := driver.Call{
		DataType: p.DataType, ReduceOp: p.ReduceOp, Send: p.Send, Recv: p.Recv, Keep: p.Keep,
	}
	send, recv := p.ownWindow(p.SendWindow), p.ownWindow(p.RecvWindow)
	if send != nil && recv != nil && send.twin != nil && recv.twin != nil {
		call.SendWindow, call.RecvWindow = send.twin, recv.twin
	}
	if p.Operation == driver.AllGather {
		call.Count = p.Count
		return l.allGather(call)
	}
	call.Count = p.Count / int64(l.locals)
	return l.allReduce(call)
}

// insideStep returns a step between the ranks of this machine.
func (l *levels) insideStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation = op
	return levelStep{level: l.inside, path: driver.PathDirect, call: call}
}

// betweenStep returns a step between machines.
func (l *levels) betweenStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation, call.SendWindow, call.RecvWindow = op, nil, nil
	return levelStep{level: l.between, path: driver.PathPlain, call: call}
}

// allReduce returns the steps of an AllReduce. A ReduceScatter inside each machine leaves each rank
// with one part of its machine's sum. An AllReduce between machines adds these parts, and an
// AllGather inside each machine collects the results. call.Count is the number of elements in a
// part.
func (l *levels) allReduce(call driver.Call) []levelStep {
	part := call.Recv + uintptr(int64(l.local)*call.Count*int64(call.DataType.Size()))
	scatter, add, gather := call, call, call
	scatter.Recv = part
	add.Send, add.Recv = part, part
	gather.Send, gather.SendWindow = part, call.RecvWindow
	return []levelStep{
		l.insideStep(driver.ReduceScatter, scatter), l.betweenStep(driver.AllReduce, add),
		l.insideStep(driver.AllGather, gather),
	}
}

// allGather returns the steps of an AllGather. Each rank first gathers the inputs of the ranks with
// its index on the other machines. The ranks of a machine then exchange what they have gathered,
// with one AllGather for each machine's block.
func (l *levels) allGather(call driver.Call) []levelStep {
	bytes := uintptr(call.Count * int64(call.DataType.Size()))
	between := call
	between.Splits = &driver.Splits{}
	for m := range l.machines {
		between.Splits.RecvCounts = append(between.Splits.RecvCounts, call.Count)
		between.Splits.RecvOffsets = append(between.Splits.RecvOffsets,
			int64(m*l.locals+l.local)*call.Count)
	}
	steps := []levelStep{l.betweenStep(driver.AllGatherV, between)}
	for m := range l.machines {
		block := call
		block.Recv = call.Recv + uintptr(m*l.locals)*bytes
		block.Send, block.SendWindow = block.Recv+uintptr(l.local)*bytes, call.RecvWindow
		steps = append(steps, l.insideStep(driver.AllGather, block))
	}
	return steps
}

// prepare prepares the steps of a call.
func (t *twoLevel) prepare(p *plan) error {
	steps, err := t.offer(p)
	if err != nil {
		return err
	}
	for i := range steps {
		s := &steps[i]
		step, err := s.offer.Take(s.path, p.Digest+uint64(i))
		if err != nil {
			return err
		}
		p.steps = append(p.steps, step.(*plan))
	}
	return nil
}
