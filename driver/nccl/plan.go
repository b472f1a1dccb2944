package nccl

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// plan implements driver.Offer and driver.Plan. After Take, it holds a prepared launch on one path.
type plan struct {
	driver.Call
	c *communicator
	// send and recv are the addresses passed to NCCL: in the first mapping of the memory on the
	// window path, and in the second one on the plain path.
	send, recv uintptr
	dataType   nccl.DataType
	reduceOp   nccl.ReduceOp
	count      int64
	// singleCall is the call to NCCL, if one call suffices and it needs no guard.
	singleCall nccl.Invocation
	// parts is set if NCCL runs the call as a group of Send and Recv.
	parts *driver.Splits
	// groupedCalls is set if NCCL runs the call as a group of other calls.
	groupedCalls []nccl.Invocation
	listedPlans  []*plan
	// cachedList is the latest list that begins with this call, an AllGatherV on the direct path.
	cachedList *atomic.Pointer[plan]
	// steps holds the plans of the levels' calls on the two-level path. If the call needs scratch
	// memory, each launch makes the plans instead.
	steps   []*plan
	scratch *scratch
	// kernel is the first direct kernel, or nil if NCCL runs the call. exchanges is the number of
	// kernels that communicate with other ranks.
	kernel              *kernel
	exchangeKernelCount int
	// guard works around the defect nccl.EarlyStart: it makes the call wait for earlier work.
	guard       func(s cuda.Stream, gpu *cuda.Driver) error
	guardedCall nccl.Invocation
	// runMeter counts and times the plan's runs, except in graphs. It may be nil.
	runMeter *driver.Meter
	work     kernels.Work // by choose
	workErr  error
}

func (p *plan) Prepared() *driver.Call { return &p.Call }

// SetMeter makes the communicator report to m how long runs of the plan take on the GPU.
func (p *plan) SetMeter(m driver.Meter) { p.runMeter = &m }

func (p *plan) Refusal(path driver.Path) error {
	switch {
	case path == driver.PathDirect:
		_, err := p.choose()
		return err
	case path == driver.PathTwoLevel:
		return p.c.twoLevel.checkOffer(p)
	case p.Norm != nil:
		return errNoNorm
	case p.Route != nil:
		return errNoRoute
	}

	if err := checkTypes(&p.Call); err != nil {
		return err
	}

	if err := p.refuseFormula(); err != nil {
		return err
	}

	switch {
	case path == driver.PathWindow:
		return p.refuseWindow()
	case p.Operation.PointToPoint() && !p.c.messages.Available():
		return noMessagesError(&p.c.cfg, p.c.members)
	}

	return nil
}

// refuseFormula returns an error for a formula (a fixed order of additions), which NCCL does not
// follow.
func (p *plan) refuseFormula() error {
	if !p.Operation.Reduces() || p.Count == 0 || len(p.c.cfg.Ranks) == 1 {
		return nil
	}

	formula := p.c.cfg.Formula
	if formula == driver.AnyFormula {
		return nil
	}

	return fmt.Errorf("the group computes reductions by the formula %v, which NCCL does not support: "+
		"only the direct path does (path auto or direct): %w", formula, driver.ErrUnsupported)
}

func (p *plan) Remark(path driver.Path) string {
	d := p.c.device
	switch {
	case path == driver.PathWindow && d.hasEarlyStart():
		_, text := d.nccl.Version()
		return fmt.Sprintf("an empty kernel is launched before it, since window kernels of NCCL %s may "+
			"start too early (fixed in %s)", text, nccl.VersionText(nccl.EarlyStart.FixedIn))
	case path == driver.PathDirect:
		return p.remarkDirect()
	case p.IsFloatMinOrMax() && len(p.c.cfg.Ranks) > 1:
		return "NCCL drops a NaN if another rank has a number"
	}

	return ""
}

func (p *plan) remarkDirect() string {
	work, err := p.choose()
	if err != nil {
		return ""
	}

	text := work.Remark()
	if reason := p.notMappedReason(); text != "" && reason != "" {
		text += ", since peers' memory could not be mapped: " + reason
	}

	return text
}

// Take prepares the call on a path.
func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	var err error
	switch path {
	case driver.PathDirect:
		err = p.prepareDirect()
	case driver.PathTwoLevel:
		err = p.c.twoLevel.prepareCall(p)
	default:
		err = p.prepareNCCL()
	}

	if err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}

	p.work, p.workErr = nil, nil
	return p, nil
}

func (p *plan) prepareNCCL() error {
	d := p.c.device
	switch {
	case p.Operation == driver.Barrier: // a sum of one byte
		buffer, err := d.scratch.Address(d.memory)
		if err != nil {
			return err
		}

		p.send, p.recv, p.count, p.DataType = buffer, buffer, 1, driver.Uint8
	case p.Path == driver.PathWindow:
		err := errors.Join(p.checkWindow("send", p.SendWindow), p.checkWindow("receive", p.RecvWindow))
		if err != nil {
			return err
		}

		p.send, p.recv = p.Send, p.Recv
	default:
		p.send, p.recv = d.memory.SecondAddress(p.Send), d.memory.SecondAddress(p.Recv)
	}

	reduceOp, _ := p.ReduceOp.NCCL().Number()
	p.dataType, p.reduceOp = dataTypes[p.DataType], nccl.ReduceOp(reduceOp)
	p.parts = p.chooseParts()
	switch {
	case p.hasFactor():
		return nil
	case len(p.c.cfg.Ranks) == 1 || p.Operation.PointToPoint() || p.parts != nil || p.isEmpty():
		return nil
	case p.Operation.SplitsOneBuffer():
		p.groupedCalls = p.makeUnevenCalls()
		return nil
	}

	call, err := p.collective()
	if err != nil {
		return err
	}

	if p.Path == driver.PathWindow && d.hasEarlyStart() {
		p.guardedCall = call
		return p.addGuard()
	}

	p.singleCall = call
	return nil
}

// chooseParts returns nil unless NCCL must run the call as Send and Recv, or the call copies one
// part.
func (p *plan) chooseParts() *driver.Splits {
	ranks := len(p.c.cfg.Ranks)
	switch {
	case ranks == 1 && p.Operation.SplitsOneBuffer():
		return singleRankSplits(p.Splits)
	case p.Operation.SplitsOneBuffer() || ranks == 1 && p.Splits == nil:
		return nil
	case p.Operation == driver.Gather || p.Operation == driver.Scatter:
		return rootSplits(&p.Call, ranks, p.c.cfg.Rank)
	case p.Operation == driver.AllToAll && (p.send == p.recv || !p.c.device.nccl.HasAlltoAll()):
		return evenSplits(ranks, p.count)
	}

	return p.Splits
}

func (p *plan) collective() (nccl.Invocation, error) {
	n, c, root := p.c.device.ncclAnyThread, p.c.comm.handle, p.Root
	switch p.Operation {
	case driver.AllReduce, driver.Barrier:
		return n.AllReduce(p.send, p.recv, p.count, p.dataType, p.reduceOp, c), nil
	case driver.AllGather:
		return n.AllGather(p.send, p.recv, p.count, p.dataType, c), nil
	case driver.ReduceScatter:
		return n.ReduceScatter(p.send, p.recv, p.count, p.dataType, p.reduceOp, c), nil
	case driver.Broadcast:
		return n.Broadcast(p.send, p.recv, p.count, p.dataType, root, c), nil
	case driver.Reduce:
		return n.Reduce(p.send, p.recv, p.count, p.dataType, p.reduceOp, root, c), nil
	case driver.AllToAll:
		return n.AlltoAll(p.send, p.recv, p.count, p.dataType, c), nil
	default: // parts, messages and kernels are launched differently
		return nccl.Invocation{}, fmt.Errorf("NCCL has no call for %v: %w", p.Operation,
			driver.ErrUnsupported)
	}
}

// addGuard sets a guard that launches an empty kernel. If symmem's kernels cannot be loaded, it
// sets a byte of memory instead, which is slower in a graph (9 us instead of 1 us).
func (p *plan) addGuard() error {
	d := p.c.device
	k := &kernel{Step: kernels.Step{Blocks: 1, Threads: 1, Params: cuda.ParamsOf(new(uint32))}}
	p.guard = func(s cuda.Stream, gpu *cuda.Driver) error { return k.queue(gpu, s) }
	// Without a direct path, the kernels have not been loaded yet.
	err := d.gpu.Do(func() error { return d.collectives.Load(d.gpu) })
	if err == nil {
		k.function, err = d.collectives.Function(d.gpu, kernels.AfterAll)
	}

	if err == nil {
		return nil
	}

	buffer, err := d.scratch.Address(d.memory)
	p.guard = func(s cuda.Stream, gpu *cuda.Driver) error {
		return gpu.MemsetD8Async(buffer, 0, 1, s)
	}
	return err
}

// isEmpty reports whether the call moves no data. On two levels, the steps move the data.
func (p *plan) isEmpty() bool {
	return p.Path == driver.PathTwoLevel ||
		p.count == 0 && p.kernel == nil && p.Splits == nil && p.listedPlans == nil
}

func (p *plan) usesNCCL() bool {
	return p.kernel == nil && !p.isEmpty() && len(p.c.cfg.Ranks) > 1
}

// isOrderedByNCCL reports whether NCCL always orders the call after its earlier calls. If the call
// has splits, this rank might not call NCCL at all.
func (p *plan) isOrderedByNCCL() bool {
	return p.kernel == nil && p.Splits == nil && p.listedPlans == nil
}

func messagePlan(p *plan) *p2p.Plan {
	address := p.send
	if p.Operation == driver.Recv {
		address = p.recv
	}

	return &p2p.Plan{Call: &p.Call, Address: address}
}

func (p *plan) queue(s *stream.Stream, gpu *cuda.Driver) error {
	switch {
	case p.singleCall.Prepared():
		return p.singleCall.On(s.CUDA)
	case p.kernel != nil:
		return p.kernel.queue(gpu, s.CUDA)
	case p.hasFactor():
		return p.queueWithFactor(s.CUDA)
	case p.listedPlans != nil:
		return queueList(p, s, gpu)
	case p.guard != nil:
		return errors.Join(p.guard(s.CUDA, gpu), p.guardedCall.On(s.CUDA))
	case p.groupedCalls != nil:
		return p.c.comm.queueGroup(p.groupedCalls, s.CUDA)
	case p.parts != nil:
		return p.queueParts(s.CUDA)
	default:
		return copyLocally(p, s.CUDA, gpu)
	}
}

func (p *plan) hasFactor() bool {
	return p.kernel == nil && p.Operation.Reduces() && p.ReduceOp.HasFactor()
}

func copyLocally(p *plan, s cuda.Stream, gpu *cuda.Driver) error {
	if p.send == p.recv {
		return nil
	}

	bytes := p.count * int64(p.DataType.Size())
	return gpu.MemcpyAsync(p.recv, p.send, bytes, s)
}

func (p *plan) choose() (kernels.Work, error) {
	c := p.c
	switch {
	case p.work != nil || p.workErr != nil:
		return p.work, p.workErr
	case c.direct.unavailableReason != "":
		return nil, fmt.Errorf("%s: %w", c.direct.unavailableReason, driver.ErrUnsupported)
	}

	work, err := c.direct.choose(directLaunch(p))
	if err == nil {
		p.work = work
		return work, nil
	}

	if reason := p.notMappedReason(); reason != "" {
		err = fmt.Errorf("peers' memory could not be mapped: %s", reason)
	}

	p.workErr = fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
	return nil, p.workErr
}

func directLaunch(p *plan) kernels.Launch {
	c := p.c
	return kernels.Launch{
		Call: &p.Call, Rank: c.cfg.Rank, Ranks: len(c.cfg.Ranks), Formula: c.cfg.Formula,
		Symmetric: isSymmetric(p), Multiprocessors: c.direct.exchange.Multiprocessors,
	}
}

// isSymmetric reports whether every rank can access the call's buffers on all ranks. If only one
// buffer has parts for all ranks, it considers only that one.
func isSymmetric(p *plan) bool {
	send, recv := p.ownWindow(p.SendWindow), p.ownWindow(p.RecvWindow)
	onlyRecv := p.Operation == driver.AllGatherV || p.Operation == driver.Dispatch
	onlySend := p.Operation == driver.ReduceScatterV || p.Operation == driver.Combine ||
		p.Operation == driver.ReduceScatterRMSNorm
	return (send != nil && send.isMappedEverywhere || onlyRecv) &&
		(recv != nil && recv.isMappedEverywhere || onlySend)
}

func (p *plan) refuseWindow() error {
	support := p.c.registrar.support()
	if support.noWindowsReason == "" && p.c.registrar.mustSkipWindows() {
		return errNoWindows
	}

	if reason := support.unsupportedReason(&p.Call); reason != "" {
		return fmt.Errorf("%s: %w", reason, driver.ErrUnsupported)
	}

	return nil
}

// ownWindow returns nil if w is not a window of the plan's group.
func (p *plan) ownWindow(w driver.Window) *window {
	if own, ok := w.(*window); ok && own != nil && own.registrar == &p.c.registrar {
		return own
	}

	return nil
}

func (p *plan) checkWindow(name string, w driver.Window) error {
	if p.ownWindow(w) == nil {
		return fmt.Errorf("the %s buffer is in no window of group %s: %w", name, p.c.cfg.Name(),
			driver.ErrOutOfRange)
	}

	return nil
}

// notMappedReason explains why some rank has not mapped the buffers, or returns "".
func (p *plan) notMappedReason() string {
	for _, w := range []driver.Window{p.SendWindow, p.RecvWindow} {
		if own := p.ownWindow(w); own != nil && !own.isMappedEverywhere {
			return own.notMappedReason
		}
	}

	return ""
}

// kernelSlack makes the watcher time out before the kernels do, because its error describes more.
const kernelSlack = 2 * time.Second

func (p *plan) prepareDirect() error {
	if p.Operation == driver.AllGatherV {
		p.cachedList = new(atomic.Pointer[plan])
	}

	work, err := p.choose()
	if err != nil {
		return err
	}

	return prepareSteps(p, work)
}

func prepareSteps(p *plan, work kernels.Work) error {
	t, err := p.c.direct.exchange.Transport()
	if err != nil {
		return err
	}

	t.Timeout = p.c.cfg.Timeout.Get() + kernelSlack
	steps := work.Steps(&t)
	for _, step := range steps {
		if !step.Local {
			p.exchangeKernelCount++
		}
	}

	p.kernel, err = linkKernels(p.c.device, steps)
	return err
}

// copyAt returns a plan for a capture, whose kernels also compare the position across ranks.
func (p *plan) copyAt(position driver.Recorded) *plan {
	recorded := *p
	recorded.Call, recorded.runMeter = p.RecordedAs(position), nil
	for link := &recorded.kernel; *link != nil; link = &(*link).next {
		k := **link
		k.SetDigest(recorded.Digest)
		*link = &k
	}

	return &recorded
}

func (p *plan) useCounts() (counts []*memory.UseCount) {
	for _, member := range p.listedPlans {
		counts = append(counts, member.useCounts()...)
	}

	if p.listedPlans != nil {
		return counts
	}

	for _, w := range []driver.Window{p.SendWindow, p.RecvWindow} {
		if own, ok := w.(*window); ok && own != nil {
			counts = append(counts, &own.useCount)
		}
	}

	return append(counts, p.segmentUseCounts()...)
}

func (p *plan) segmentUseCounts() (counts []*memory.UseCount) {
	for _, member := range p.listedPlans {
		counts = append(counts, member.segmentUseCounts()...)
	}

	if p.listedPlans != nil {
		return counts
	}

	addresses := []uintptr{p.Send, p.Recv}
	for _, span := range p.OtherSpans() {
		addresses = append(addresses, span.Address)
	}

	for _, address := range addresses {
		if s := p.c.device.memory.SegmentAt(address); s != nil {
			counts = append(counts, &s.UseCount)
		}
	}

	return counts
}
