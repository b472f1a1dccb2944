package nccl

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// plan is a call, first offered and then prepared: the addresses choose NCCL's path.
type plan struct {
	driver.Call
	c *communicator
	// send and recv are what NCCL is given: addresses in windows for the window path, of the second
	// mapping for the plain one.
	send, recv uintptr
	dataType   nccl.DataType
	reduceOp   nccl.ReduceOp
	// count is Count, but 1 for a barrier, which is a sum of one element.
	count int64
	// ready is NCCL's call, if it is a single one.
	ready nccl.Call
	// kernel is our own, the first of those of the call, or nil for NCCL's. Meetings is how many of
	// them meet the other ranks, which kernels count as calls.
	kernel   *kernel
	meetings int
	// guard queues what goes before NCCL's call (guarded), so that this begins when all that is ahead
	// of it has ended; nil for calls that begin so by themselves (nccl.EarlyStart).
	guard   func(on cuda.Stream, gpu *cuda.Driver) error
	guarded nccl.Call
	// chosen is the kernel of our own, from when it was asked for until a path is taken.
	chosen *chosen
}

// Prepared returns what was prepared.
func (p *plan) Prepared() *driver.Call { return &p.Call }

// What NCCL calls types and reductions. A call of one that is not listed has no path through NCCL:
// its number would be 0, which is an int8, and a sum.
var dataTypes = map[driver.DataType]nccl.DataType{
	driver.Float64: nccl.Float64, driver.Float32: nccl.Float32, driver.Float16: nccl.Float16,
	driver.BFloat16: nccl.BFloat16, driver.Int8: nccl.Int8, driver.Int32: nccl.Int32,
	driver.Int64: nccl.Int64, driver.Uint8: nccl.Uint8,
}

var reduceOps = map[driver.ReduceOp]nccl.ReduceOp{
	driver.Sum: nccl.Sum, driver.Prod: nccl.Prod, driver.Min: nccl.Min, driver.Max: nccl.Max,
	driver.Avg: nccl.Avg,
}

// Offer resolves nothing yet: each path is looked at when it is asked for.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, c: c, count: call.Count}
}

// Refusal says why there is no kernel for a path.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect {
		return p.refuseDirect()
	}
	if err := unknown(&p.Call); err != nil {
		return err
	}
	if err := p.refuseFormula(); err != nil {
		return err
	}
	switch {
	case path == driver.PathWindow:
		return p.c.windowed(&p.Call)
	case p.Operation.PointToPoint() && !p.c.messages.Known():
		return p.c.withoutMessages()
	}
	return nil
}

// refuseFormula refuses to give NCCL a reduction of a group that has a formula: NCCL's order of
// additions depends on the size of a message and on much else. A group of one rank copies.
func (p *plan) refuseFormula() error {
	if !p.Operation.Reduces() || len(p.c.cfg.Ranks) == 1 {
		return nil
	}
	formula := p.c.cfg.Formula
	if formula == driver.AnyFormula {
		return nil
	}
	return fmt.Errorf("the group computes reductions by the formula %v, and NCCL by none: only "+
		"the direct path does (path auto or direct): %w", formula, driver.ErrUnsupported)
}

// unknown refuses a call whose type or reduction NCCL does not have.
func unknown(call *driver.Call) error {
	_, typed := dataTypes[call.DataType]
	_, reduced := reduceOps[call.ReduceOp]
	if typed && (reduced || !call.Operation.Reduces()) {
		return nil
	}
	return fmt.Errorf("NCCL has no %v of %v with %v: %w", call.Operation, call.DataType,
		call.ReduceOp, driver.ErrUnsupported)
}

// Remark says what is worth knowing of a call on a path, or nothing.
func (p *plan) Remark(path driver.Path) string {
	d := p.c.device
	switch {
	case path == driver.PathWindow && d.startsEarly():
		_, text := d.nccl.Version()
		return fmt.Sprintf("an empty kernel goes before it, since kernels over windows of NCCL %s "+
			"may begin too early (right from %s on)", text, nccl.VersionText(nccl.EarlyStart.Below))
	case path == driver.PathDirect && p.choose().launch.Pieces > 1:
		text := fmt.Sprintf("it goes through exchange memory in %d pieces", p.choose().launch.Pieces)
		if why := p.c.unreached(&p.Call); why != "" {
			text += ", since peers' memory could not be mapped: " + why
		}
		return text
	case path == driver.PathDirect && p.choose().launch.Bulk && lieApart(&p.Call):
		return "input and output lie differently modulo 16 bytes, so it moves elements one by one, " +
			"which is slow"
	}
	return ""
}

// Take chooses the addresses that NCCL is given, or works out the launch of a kernel of our own.
func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	if err := p.resolve(); err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}
	p.chosen = nil
	p.dataType, p.reduceOp = dataTypes[p.DataType], reduceOps[p.ReduceOp]
	switch {
	case !p.single() || p.nothing():
	case p.guard != nil:
		p.guarded = p.collective()
	default:
		p.ready = p.collective()
	}
	return p, nil
}

// single reports whether a plan is one call of NCCL's. All-to-all in place works on a copy of its
// input, which NCCL itself does not offer, and groups of one rank copy.
func (p *plan) single() bool {
	return p.kernel == nil && len(p.c.cfg.Ranks) > 1 && !p.Operation.PointToPoint() &&
		p.Operation != driver.AllToAllV &&
		!(p.Operation == driver.AllToAll && p.send == p.recv)
}

// collective is NCCL's call.
func (p *plan) collective() nccl.Call {
	n, c, root := p.c.device.anywhere, p.c.handle, p.Root
	switch p.Operation {
	case driver.AllReduce, driver.Barrier:
		return n.AllReduce(p.send, p.recv, p.count, p.dataType, p.reduceOp, c)
	case driver.AllGather:
		return n.AllGather(p.send, p.recv, p.count, p.dataType, c)
	case driver.ReduceScatter:
		return n.ReduceScatter(p.send, p.recv, p.count, p.dataType, p.reduceOp, c)
	case driver.Broadcast:
		return n.Broadcast(p.send, p.recv, p.count, p.dataType, root, c)
	case driver.Reduce:
		return n.Reduce(p.send, p.recv, p.count, p.dataType, p.reduceOp, root, c)
	default:
		return n.AlltoAll(p.send, p.recv, p.count, p.dataType, c)
	}
}

func (p *plan) resolve() error {
	switch {
	case p.Path == driver.PathDirect:
		return p.prepareDirect()
	case p.Operation == driver.Barrier:
		return p.resolveBarrier()
	case p.Path == driver.PathWindow:
		p.send, p.recv = p.Send, p.Recv
		return errors.Join(p.c.owns("send", p.SendWindow), p.c.owns("receive", p.RecvWindow),
			p.putGuard())
	}
	p.send, p.recv = p.c.device.memory.AliasOf(p.Send), p.c.device.memory.AliasOf(p.Recv)
	return nil
}

// putGuard has an empty kernel go before a call over windows, if NCCL's kernels do not wait for
// what is ahead of them. Where kernels of ours cannot be loaded it is a fill of a byte, which costs
// 9 us in a graph, and a kernel 1.
func (p *plan) putGuard() error {
	d := p.c.device
	if !d.startsEarly() || !p.single() {
		return nil
	}
	k := &kernel{grid: cuda.Dim{X: 1}, block: cuda.Dim{X: 1}}
	k.params.Uint32(0) // which it does not look at
	p.guard = func(on cuda.Stream, gpu *cuda.Driver) error { return k.launch(gpu, on) }
	err := d.gpu.Do(func() error {
		err := d.collectives.Load(d.gpu) // a group without a direct path has not
		if err == nil {
			k.function, err = d.collectives.Function(d.gpu, kernels.AfterAll)
		}
		return err
	})
	if err == nil {
		return nil
	}
	at, err := d.scratch.Address(d.memory)
	p.guard = func(on cuda.Stream, gpu *cuda.Driver) error { return gpu.MemsetD8Async(at, 0, 1, on) }
	return err
}

// resolveBarrier makes a barrier a sum over a byte of each rank.
func (p *plan) resolveBarrier() error {
	at, err := p.c.barrierMemory()
	p.send, p.recv, p.count, p.DataType = at, at, 1, driver.Uint8
	return err
}

// owns refuses windows of other groups, and buffers that have none.
func (c *communicator) owns(what string, in driver.Window) error {
	if w, ok := in.(*window); !ok || w.c != c {
		return fmt.Errorf("%s buffer: no window of group %s: %w", what, c.cfg.Name(),
			driver.ErrOutOfRange)
	}
	return nil
}

// nothing reports whether a call moves no data.
func (p *plan) nothing() bool { return p.count == 0 && p.kernel == nil && p.Splits == nil }

// ordered reports whether NCCL orders a call with others of its own. It does not know of an
// AllToAllV in which this rank has nothing for others.
func (p *plan) ordered() bool { return p.kernel == nil && p.Splits == nil }

// needsAll reports whether no rank can end the collective before all have begun it.
func (p *plan) needsAll() bool {
	switch p.Operation {
	case driver.AllReduce, driver.AllReduceRMSNorm, driver.AllGather, driver.ReduceScatter,
		driver.AllToAll, driver.Barrier:
		return true
	default:
		return false
	}
}

// message is the plan of a message, as package p2p knows it.
func (p *plan) message() *p2p.Call {
	at := p.send
	if p.Operation == driver.Recv {
		at = p.recv
	}
	return &p2p.Call{Call: &p.Call, Address: at}
}

// run queues the plan through a driver that is in the device's context. s.Mu and c.mu are held.
func (p *plan) run(s *stream.Stream, gpu *cuda.Driver) error {
	if p.c.direct.none != "" {
		return p.queue(s, gpu) // NCCL keeps the order
	}
	return p.c.inTurn(p, s, gpu)
}

// queue is run when it is the plan's turn.
func (p *plan) queue(s *stream.Stream, gpu *cuda.Driver) error {
	switch {
	case p.ready.Prepared():
		return p.ready.On(s.CUDA)
	case p.kernel != nil:
		return p.kernel.queue(gpu, s.CUDA)
	case p.guard != nil:
		return errors.Join(p.guard(s.CUDA, gpu), p.guarded.On(s.CUDA))
	case p.Splits != nil:
		v := allToAllV{&p.Call, p.c, p.send, p.recv, p.dataType}
		return v.queue(s.CUDA)
	case len(p.c.cfg.Ranks) == 1:
		return p.copy(s.CUDA, gpu)
	default:
		return p.allToAllInPlace(s.CUDA, gpu)
	}
}

// copy is what every collective of a group of one comes to.
func (p *plan) copy(on cuda.Stream, gpu *cuda.Driver) error {
	if p.send == p.recv {
		return nil
	}
	bytes := p.count * int64(p.DataType.Size())
	return gpu.MemcpyAsync(p.recv, p.send, bytes, on)
}

func (p *plan) allToAllInPlace(on cuda.Stream, gpu *cuda.Driver) error {
	bytes := p.count * int64(p.DataType.Size()) * int64(len(p.c.cfg.Ranks))
	input, err := gpu.MemAllocAsync(bytes, on)
	if err != nil {
		return err
	}
	err = gpu.MemcpyAsync(input, p.send, bytes, on)
	if err == nil {
		call := p.c.device.anywhere.AlltoAll(input, p.recv, p.count, p.dataType, p.c.handle)
		err = call.On(on)
	}
	return errors.Join(err, gpu.MemFreeAsync(input, on))
}

// barrierMemory returns the byte that barriers add up, and makes it at first use.
func (c *communicator) barrierMemory() (uintptr, error) {
	return c.device.scratch.Address(c.device.memory)
}
