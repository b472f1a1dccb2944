package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

func elementsPerPack(t driver.DataType) int64 { return kernels.PackBytes / int64(t.Size()) }

// levelStep is a call on one level (the communicator within a machine, or between machines).
type levelStep struct {
	level *communicator
	path  driver.Path
	call  driver.Call
	offer driver.Offer
}

func (t *twoLevel) checkOffer(p *plan) error {
	_, err := t.offerSteps(p)
	return err
}

// offerSteps returns the steps of a call, or the reason why it cannot use two levels.
func (t *twoLevel) offerSteps(p *plan) ([]levelStep, error) {
	levels := t.levels.Load()
	if levels == nil {
		return nil, fmt.Errorf("%s: %w", t.noTwoLevelReason(), driver.ErrUnsupported)
	}
	if err := levels.checkCall(&p.Call); err != nil {
		return nil, err
	}
	steps := levels.makeSteps(p)
	for i := range steps {
		s := &steps[i]
		s.offer = s.level.Offer(s.call)
		if err := s.offer.Refusal(s.path); err != nil {
			return nil, fmt.Errorf("two levels: %v on the %v path: %w", s.call.Operation, s.path, err)
		}
	}
	return steps, nil
}

// checkCall returns the same result on every rank.
func (l *levels) checkCall(call *driver.Call) error {
	divisor := elementsPerPack(call.DataType)
	switch {
	case call.Operation.Reduces() && call.ReduceOp != driver.Sum:
		return fmt.Errorf("two levels compute sums only, not %v: %w", call.ReduceOp,
			driver.ErrUnsupported)
	case call.Operation == driver.AllReduce:
		divisor *= int64(l.ranksPerMachine)
	case call.Operation == driver.AllGather:
	default:
		return fmt.Errorf("two levels do not support %v: %w", call.Operation, driver.ErrUnsupported)
	}
	if call.Count == 0 || call.Count%divisor != 0 {
		return fmt.Errorf("on two levels, the number of elements of this call must be a multiple of %d: "+
			"%w", divisor, driver.ErrUnsupported)
	}
	return nil
}

func (l *levels) makeSteps(p *plan) []levelStep {
	call := driver.Call{
		DataType: p.DataType, ReduceOp: p.ReduceOp, Send: p.Send, Recv: p.Recv, Keep: p.Keep,
	}
	send, recv := p.ownWindow(p.SendWindow), p.ownWindow(p.RecvWindow)
	if send != nil && recv != nil && send.machineWindow != nil && recv.machineWindow != nil {
		call.SendWindow, call.RecvWindow = send.machineWindow, recv.machineWindow
	}
	if p.Operation == driver.AllGather {
		call.Count = p.Count
		return l.makeAllGatherSteps(call)
	}
	call.Count = p.Count / int64(l.ranksPerMachine)
	return l.makeAllReduceSteps(call)
}

func (l *levels) machineStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation = op
	return levelStep{level: l.machineLevel, path: driver.PathDirect, call: call}
}

func (l *levels) crossMachineStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation, call.SendWindow, call.RecvWindow = op, nil, nil
	return levelStep{level: l.crossMachineLevel, path: driver.PathPlain, call: call}
}

// makeAllReduceSteps returns the steps of an AllReduce: a ReduceScatter within each machine, an
// AllReduce of each part between machines, and an AllGather within each machine.
func (l *levels) makeAllReduceSteps(call driver.Call) []levelStep {
	partAddress := call.Recv + uintptr(int64(l.localIndex)*call.Count*int64(call.DataType.Size()))
	scatterCall, sumCall, gatherCall := call, call, call
	scatterCall.Recv = partAddress
	sumCall.Send, sumCall.Recv = partAddress, partAddress
	gatherCall.Send, gatherCall.SendWindow = partAddress, call.RecvWindow
	return []levelStep{
		l.machineStep(driver.ReduceScatter, scatterCall), l.crossMachineStep(driver.AllReduce, sumCall),
		l.machineStep(driver.AllGather, gatherCall),
	}
}

// makeAllGatherSteps returns the steps of an AllGather. First, the ranks with the same local index
// gather their inputs between machines. Then each machine gathers these inputs, with one AllGather
// for the inputs of each machine.
func (l *levels) makeAllGatherSteps(call driver.Call) []levelStep {
	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	crossCall := call
	crossCall.Splits = &driver.Splits{}
	for machine := range l.machines {
		crossCall.Splits.RecvCounts = append(crossCall.Splits.RecvCounts, call.Count)
		crossCall.Splits.RecvOffsets = append(crossCall.Splits.RecvOffsets,
			int64(machine*l.ranksPerMachine+l.localIndex)*call.Count)
	}
	steps := []levelStep{l.crossMachineStep(driver.AllGatherV, crossCall)}
	for machine := range l.machines {
		machineCall := call
		machineCall.Recv = call.Recv + uintptr(machine*l.ranksPerMachine)*partBytes
		machineCall.Send = machineCall.Recv + uintptr(l.localIndex)*partBytes
		machineCall.SendWindow = call.RecvWindow
		steps = append(steps, l.machineStep(driver.AllGather, machineCall))
	}
	return steps
}

func (t *twoLevel) prepareCall(p *plan) error {
	steps, err := t.offerSteps(p)
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
