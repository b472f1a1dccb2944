package nccl

import (
	"errors"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

func elementsPerPack(t driver.DataType) int64 { return kernels.PackBytes / int64(t.Size()) }

// levelStep is a call on one level: the communicator within a machine, or between machines.
type levelStep struct {
	level *communicator
	path  driver.Path
	call  driver.Call
	offer driver.Offer
}

// alignedAddress replaces the address of scratch memory, which only a launch allocates, in checks.
const alignedAddress = 1 << 20

func (t *twoLevel) checkOffer(p *plan) error {
	_, err := t.offerSteps(p, alignedAddress)
	return err
}

// offerSteps returns an error if the call cannot use two levels.
func (t *twoLevel) offerSteps(p *plan, scratch uintptr) ([]levelStep, error) {
	levels := t.levels.Load()
	if levels == nil {
		return nil, fmt.Errorf("%s: %w", t.noTwoLevelReason(), driver.ErrUnsupported)
	}

	if err := levels.checkCall(&p.Call); err != nil {
		return nil, err
	}

	steps := levels.makeSteps(p, scratch)
	for i := range steps {
		s := &steps[i]
		s.offer = s.level.Offer(s.call)
		if err := s.offer.Refusal(s.path); err != nil {
			return nil, fmt.Errorf("two levels: %v on the %v path: %w", s.call.Operation, s.path, err)
		}
	}

	return steps, nil
}

// checkCall must return the same result on every rank.
func (l *levels) checkCall(call *driver.Call) error {
	divisor := elementsPerPack(call.DataType)
	switch {
	case call.Operation.Reduces() && call.ReduceOp != driver.Sum:
		return fmt.Errorf("two levels compute sums only, not %v: %w", call.ReduceOp,
			driver.ErrUnsupported)
	case call.Operation == driver.AllReduce:
		divisor *= int64(l.ranksPerMachine)
	case call.Operation == driver.AllGather || call.Operation == driver.ReduceScatter:
	default:
		return fmt.Errorf("two levels do not support %v: %w", call.Operation, driver.ErrUnsupported)
	}

	if call.Count == 0 || call.Count%divisor != 0 {
		return fmt.Errorf("on two levels, the number of elements of this call must be a multiple of %d: "+
			"%w", divisor, driver.ErrUnsupported)
	}

	return nil
}

func (l *levels) makeSteps(p *plan, scratch uintptr) []levelStep {
	call := driver.Call{
		DataType: p.DataType, ReduceOp: p.ReduceOp, Send: p.Send, Recv: p.Recv, Keep: p.Keep,
	}
	send, recv := p.ownWindow(p.SendWindow), p.ownWindow(p.RecvWindow)
	if send != nil && recv != nil && send.machineWindow != nil && recv.machineWindow != nil {
		call.SendWindow, call.RecvWindow = send.machineWindow, recv.machineWindow
	}

	switch call.Count = p.Count; p.Operation {
	case driver.AllGather:
		return l.makeAllGatherSteps(call)
	case driver.ReduceScatter:
		return l.makeReduceScatterSteps(call, scratch)
	default:
		call.Count /= int64(l.ranksPerMachine)
		return l.makeAllReduceSteps(call)
	}
}

func (l *levels) machineStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation = op
	return levelStep{level: l.machineLevel, path: driver.PathDirect, call: call}
}

func (l *levels) crossMachineStep(op driver.Operation, call driver.Call) levelStep {
	call.Operation, call.SendWindow, call.RecvWindow = op, nil, nil
	return levelStep{level: l.crossMachineLevel, path: driver.PathPlain, call: call}
}

// makeAllReduceSteps returns a ReduceScatter within each machine, an AllReduce of each part between
// machines, and an AllGather within each machine.
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

// makeAllGatherSteps returns an AllGather between the ranks with the same local index on all
// machines, and then, within each machine, one AllGather for the inputs of each machine.
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

// makeReduceScatterSteps returns, within each machine, one ReduceScatterV for each destination
// machine. Each rank then holds, in scratch memory, a partial sum for the rank with the same local
// index on every machine. A ReduceScatter between machines adds these sums.
func (l *levels) makeReduceScatterSteps(call driver.Call, scratch uintptr) []levelStep {
	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	parts := evenSplits(l.ranksPerMachine, call.Count)
	var steps []levelStep
	for machine := range l.machines {
		machineCall := call
		machineCall.Splits = &driver.Splits{
			SendCounts: parts.SendCounts, SendOffsets: parts.SendOffsets,
		}
		machineCall.Send = call.Send + uintptr(machine*l.ranksPerMachine)*partBytes
		machineCall.Recv, machineCall.RecvWindow = scratch+uintptr(machine)*partBytes, nil
		steps = append(steps, l.machineStep(driver.ReduceScatterV, machineCall))
	}

	crossCall := call
	crossCall.Send = scratch
	return append(steps, l.crossMachineStep(driver.ReduceScatter, crossCall))
}

func (t *twoLevel) prepareCall(p *plan) error {
	if p.Operation == driver.ReduceScatter {
		if err := t.checkOffer(p); err != nil {
			return err
		}

		partBytes := p.Count * int64(p.DataType.Size())
		p.scratch = &scratch{bytes: roundUpForNCCL(int64(t.levels.Load().machines) * partBytes)}
		return nil
	}

	var err error
	p.steps, err = t.takeSteps(p, 0)
	return err
}

func (t *twoLevel) takeSteps(p *plan, scratch uintptr) (steps []*plan, err error) {
	offered, err := t.offerSteps(p, scratch)
	if err != nil {
		return nil, err
	}

	for i := range offered {
		s := &offered[i]
		step, err := s.offer.Take(s.path, p.Digest+uint64(i))
		if err != nil {
			return nil, err
		}

		steps = append(steps, step.(*plan))
	}

	return steps, nil
}

// scratch is memory for the results of steps. Each launch of the call allocates it in stream order,
// because launches on different streams must not share it.
type scratch struct {
	bytes  int64
	latest atomic.Pointer[scratchSteps]
}

// scratchSteps holds steps that use scratch memory at an address.
type scratchSteps struct {
	address uintptr
	plans   []*plan
}

// launchSteps calls launch for each step. An error makes the group fail, because other ranks expect
// the remaining steps.
func launchSteps(p *plan, s *stream.Stream, launch func(*communicator, *plan) error) error {
	launchAll := func(steps []*plan) error {
		for _, step := range steps {
			if err := launch(step.c, step); err != nil {
				return err
			}
		}

		return nil
	}
	var err error
	switch {
	case p.scratch != nil:
		err = p.scratch.use(p, s, launchAll)
	case len(p.steps) > 0:
		err = launchAll(p.steps)
	default:
		err = fmt.Errorf("a %v on two levels has no steps", p.Operation)
	}

	if err != nil {
		return p.c.plane.Fail(err)
	}

	return nil
}

// use allocates the memory in stream order, launches the steps, and frees the memory. CUDA often
// returns the same address again, so use keeps the latest plans.
func (m *scratch) use(p *plan, s *stream.Stream, launch func([]*plan) error) error {
	address := uintptr(0)
	err := m.withStream(p, s, func(gpu *cuda.Driver) (err error) {
		address, err = gpu.MemAllocAsync(m.bytes, s.CUDA)
		return err
	})
	if err != nil {
		if errors.Is(err, cuda.ErrOutOfMemory) {
			err = &driver.OutOfMemoryError{Requested: m.bytes, Cause: err}
		}

		return fmt.Errorf("allocating memory for the steps of a %v: %w", p.Operation, err)
	}

	steps := m.latest.Load()
	if steps == nil || steps.address != address {
		steps = &scratchSteps{address: address}
		if steps.plans, err = p.c.twoLevel.takeSteps(p, address); err == nil {
			m.latest.Store(steps)
		}
	}

	if err == nil {
		err = launch(steps.plans)
	}

	return errors.Join(err, m.withStream(p, s, func(gpu *cuda.Driver) error {
		return gpu.MemFreeAsync(address, s.CUDA)
	}))
}

// withStream returns an error if the stream is closed.
func (m *scratch) withStream(p *plan, s *stream.Stream, f func(*cuda.Driver) error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return err
	}

	return p.c.device.gpu.With(f)
}
