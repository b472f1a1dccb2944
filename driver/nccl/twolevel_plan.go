package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// packElements returns the number of elements in kernels.PackBytes bytes.
func packElements(t driver.DataType) int64 { return kernels.PackBytes / int64(t.Size()) }

type levelStep struct {
	level *communicator
	path  driver.Path
	call  driver.Call
	offer driver.Offer
}

func (t *twoLevel) refusal(p *plan) error {
	_, err := t.offer(p)
	return err
}

// offer returns the steps of a call on two levels. If the call cannot use two levels, offer returns
// the reason as an error.
func (t *twoLevel) offer(p *plan) ([]levelStep, error) {
	l := t.levels.Load()
	if l == nil {
		return nil, fmt.Errorf("%s: %w", t.noTwoLevelReason(), driver.ErrUnsupported)
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

// check returns the same result on every rank.
func (l *levels) check(call *driver.Call) error {
	unit := packElements(call.DataType)
	switch {
	case call.Operation.Reduces() && call.ReduceOp != driver.Sum:
		return fmt.Errorf("two levels compute sums only, not %v: %w", call.ReduceOp,
			driver.ErrUnsupported)
	case call.Operation == driver.AllReduce:
		unit *= int64(l.ranksPerMachine)
	case call.Operation == driver.AllGather:
	default:
		return fmt.Errorf("two levels do not support %v: %w", call.Operation, driver.ErrUnsupported)
	}
	if call.Count == 0 || call.Count%unit != 0 {
		return fmt.Errorf("on two levels, the number of elements of this call must be a multiple of %d: "+
			"%w", unit, driver.ErrUnsupported)
	}
	return nil
}

func (l *levels) steps(p *plan) []levelStep {
	call := driver.Call{
		DataType: p.DataType, ReduceOp: p.ReduceOp, Send: p.Send, Recv: p.Recv, Keep: p.Keep,
	}
	send, recv := p.ownWindow(p.SendWindow), p.ownWindow(p.RecvWindow)
	if send != nil && recv != nil && send.intraWindow != nil && recv.intraWindow != nil {
		call.SendWindow, call.RecvWindow = send.intraWindow, recv.intraWindow
	}
	if p.Operation == driver.AllGather {
		call.Count = p.Count
		return l.allGather(call)
	}
	call.Count = p.Count / int64(l.ranksPerMachine)
	return l.allReduce(call)
}

func (l *levels) intraStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation = op
	return levelStep{level: l.intra, path: driver.PathDirect, call: call}
}

func (l *levels) interStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation, call.SendWindow, call.RecvWindow = op, nil, nil
	return levelStep{level: l.inter, path: driver.PathPlain, call: call}
}

// allReduce returns the steps of an AllReduce: a ReduceScatter within each machine, an AllReduce of
// the parts between machines, and an AllGather within each machine.
func (l *levels) allReduce(call driver.Call) []levelStep {
	part := call.Recv + uintptr(int64(l.localIndex)*call.Count*int64(call.DataType.Size()))
	scatter, add, gather := call, call, call
	scatter.Recv = part
	add.Send, add.Recv = part, part
	gather.Send, gather.SendWindow = part, call.RecvWindow
	return []levelStep{
		l.intraStep(driver.ReduceScatter, scatter), l.interStep(driver.AllReduce, add),
		l.intraStep(driver.AllGather, gather),
	}
}

// allGather returns the steps of an AllGather. First, the ranks with the same index on all machines
// gather their inputs. Then the ranks of a machine exchange what they have gathered, with one
// AllGather for the inputs of each machine.
func (l *levels) allGather(call driver.Call) []levelStep {
	bytes := uintptr(call.Count * int64(call.DataType.Size()))
	inter := call
	inter.Splits = &driver.Splits{}
	for m := range l.machines {
		inter.Splits.RecvCounts = append(inter.Splits.RecvCounts, call.Count)
		inter.Splits.RecvOffsets = append(inter.Splits.RecvOffsets,
			int64(m*l.ranksPerMachine+l.localIndex)*call.Count)
	}
	steps := []levelStep{l.interStep(driver.AllGatherV, inter)}
	for m := range l.machines {
		block := call
		block.Recv = call.Recv + uintptr(m*l.ranksPerMachine)*bytes
		block.Send, block.SendWindow = block.Recv+uintptr(l.localIndex)*bytes, call.RecvWindow
		steps = append(steps, l.intraStep(driver.AllGather, block))
	}
	return steps
}

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
