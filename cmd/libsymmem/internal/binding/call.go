package binding

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"symmem"
	"symmem/driver"
)

// Call is a collective or a message as C asks for it.
type Call struct {
	Operation, Type, Op, Path int
	// Root is the root, or the peer of a message.
	Root, Tag  int
	Count      int64
	Send, Recv uintptr
	// Splits are those of an AllToAllV. Offsets that are nil are parts one behind the other.
	Splits *symmem.Splits
	// From, if set, is told the rank that has sent the message, when a Recv has it.
	From   func(rank int)
	Stream uintptr
	// Site is the number of the call site, or 0.
	Site uint32
}

// Do queues a collective or one end of a message on a foreign stream.
func (l *Library) Do(handle uint64, c *Call) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	call, err := c.resolve(r, g)
	if err != nil {
		return err
	}
	s, err := r.stream(c.Stream)
	if err != nil {
		return err
	}
	err = l.queue(r.rt.Interop().At(c.Site), g, call, s)
	if err == nil && c.From != nil && call.Arrived == nil {
		c.From(c.Root)
	}
	return err
}

// queue queues a collective, on a separate thread if it first waits for other ranks to register
// memory.
func (l *Library) queue(
	interop symmem.Interop, g *group, call symmem.Call, s *symmem.Stream,
) error {
	if interop.Registers(g.Group, call.Operation, call.Send, call.Recv, s) {
		return l.queueApart(interop, g, call, s)
	}
	return interop.Do(context.Background(), g.Group, call, s)
}

// queueApart makes a closure, which other calls do without.
func (l *Library) queueApart(
	interop symmem.Interop, g *group, call symmem.Call, s *symmem.Stream,
) error {
	return l.apart("registering", func(ctx context.Context) error {
		return interop.Do(ctx, g.Group, call, s)
	})
}

// resolve checks what the types of Go would narrow, and finds the buffers.
func (c *Call) resolve(r *rank, g *group) (symmem.Call, error) {
	const most = 1 << 44
	call := symmem.Call{Root: c.Root, Tag: c.Tag, Count: c.Count}
	var errs [4]error
	call.Operation, errs[0] = term("operation", operations, c.Operation)
	call.Type, errs[1] = term("element type", types, c.Type)
	call.Op, errs[2] = term("reduction", reductions, c.Op)
	call.Path, errs[3] = term("path", paths, c.Path)
	for _, err := range errs {
		if err != nil {
			return call, err
		}
	}
	if c.Splits != nil {
		return c.split(r, call, g.Size())
	}
	if c.Count < 0 {
		return call, fmt.Errorf("count %d: %w", c.Count, symmem.ErrInvalid)
	}
	if c.Count > most/int64(g.Size()) {
		return call, fmt.Errorf("count %d: %w", c.Count, symmem.ErrOutOfRange)
	}
	if c.From != nil && c.Root == symmem.AnySource {
		call.Arrived = c.From
	}
	resolved := driver.Call{Operation: call.Operation, DataType: call.Type, Count: call.Count}
	if call.Operation == symmem.OpAllToAllV {
		resolved.Operation = symmem.OpAllToAll // Explain takes even splits
	}
	send, recv := resolved.Spans(g.Size())
	return c.memory(r, call, send, recv)
}

// memory finds the buffers of a call, which uses send and recv bytes of them.
func (c *Call) memory(r *rank, call symmem.Call, send, recv int64) (symmem.Call, error) {
	var err error
	if call.Send, err = r.memory(c.Send, send); err == nil {
		call.Recv, err = r.memory(c.Recv, recv)
	}
	return call, err
}

// split checks the splits of a call and finds its buffers.
func (c *Call) split(r *rank, call symmem.Call, ranks int) (symmem.Call, error) {
	whole := symmem.Contiguous(c.Splits.SendCounts, c.Splits.RecvCounts)
	if c.Splits.SendOffsets != nil {
		whole.SendOffsets = c.Splits.SendOffsets
	}
	if c.Splits.RecvOffsets != nil {
		whole.RecvOffsets = c.Splits.RecvOffsets
	}
	if err := whole.Validate(ranks); err != nil {
		return call, err
	}
	call.Splits = &whole
	size := int64(call.Type.Size())
	return c.memory(r, call, size*reach(whole.SendCounts, whole.SendOffsets),
		size*reach(whole.RecvCounts, whole.RecvOffsets))
}

// reach returns how many elements of a buffer its parts need.
func reach(counts, offsets []int64) int64 {
	ends := make([]int64, len(counts))
	for i, n := range counts {
		if n > 0 {
			ends[i] = offsets[i] + n
		}
	}
	return slices.Max(ends)
}

// memory returns the memory at an address that C has given. It refuses memory of buffers that were
// freed, also of pools that are closed.
func (r *rank) memory(address uintptr, bytes int64) (symmem.Memory, error) {
	m, err := r.rt.Interop().Memory(address, bytes)
	if err == nil && m.Pool() == nil && bytes > 0 {
		err = r.library.kept.covers(address, bytes, r.rt.Device().Ordinal < 0)
	}
	return m, err
}

// Explain says which path a collective would take now, and why, as JSON.
func (l *Library) Explain(handle uint64, c *Call) (string, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return "", err
	}
	call, err := c.resolve(r, g)
	if err != nil {
		return "", err
	}
	e, err := g.Explain(call.Operation, call.Send, call.Recv, call.Count, call.Type)
	if err != nil {
		return "", err
	}
	return encode(e)
}

// Norm is an all-reduce with residual and RMSNorm, as C asks for it.
type Norm struct {
	Rows, Hidden                    int64
	Epsilon                         float32
	Input, Residual, Weight, Output uintptr
	Stream                          uintptr
	// Site is the number of the call site, or 0.
	Site uint32
}

// Norm queues one on a foreign stream.
func (l *Library) Norm(handle uint64, n *Norm) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	args, err := n.resolve(r)
	if err != nil {
		return err
	}
	s, err := r.stream(n.Stream)
	if err != nil {
		return err
	}
	return l.queue(r.rt.Interop().At(n.Site), g, symmem.Call{
		Operation: symmem.OpAllReduceRMSNorm, Norm: &args, Send: args.Input, Recv: args.Output,
	}, s)
}

// resolve finds the tensors.
func (n *Norm) resolve(r *rank) (symmem.NormArgs, error) {
	const most = 1 << 44
	args := symmem.NormArgs{Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon}
	if n.Rows < 0 || n.Hidden < 1 || n.Hidden > driver.MaxHidden || n.Rows > most/n.Hidden {
		return args, fmt.Errorf("%d rows of %d elements: %w", n.Rows, n.Hidden, symmem.ErrInvalid)
	}
	row := n.Hidden * int64(symmem.BFloat16.Size())
	var errs [4]error
	args.Input, errs[0] = r.memory(n.Input, n.Rows*row)
	args.Residual, errs[1] = r.memory(n.Residual, n.Rows*row)
	args.Output, errs[2] = r.memory(n.Output, n.Rows*row)
	args.Weight, errs[3] = r.memory(n.Weight, row)
	return args, cmp.Or(errs[:]...)
}

// Number makes a call on a number that all ranks of a group have under a name. operation and value
// are those of struct symmem_value.
func (l *Library) Number(
	handle uint64, operation int, name string, value int64, site uint32,
) (int64, error) {
	o, err := term("operation", values, operation)
	if err != nil {
		return 0, err
	}
	if o == symmem.ValueStep {
		return 0, fmt.Errorf("operation %d on value %q: %w", operation, name, symmem.ErrInvalid)
	}
	return l.Value(handle, symmem.ValueCall{
		Operation: o, Name: name, Value: value, Float: math.Float64frombits(uint64(value)),
	}, site)
}

// Value makes a call on a value of the ranks of a group, for a call site.
//
// On one machine a wait polls the caller for interrupts, as collectives do; between machines the
// call runs on another thread. That takes a closure, so it is only made there.
func (l *Library) Value(handle uint64, c symmem.ValueCall, site uint32) (int64, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return 0, err
	}
	interop := r.rt.Interop().At(site)
	if g.machines <= 1 {
		return interop.Value(context.Background(), g.Group, c)
	}
	return valueApart(l, interop, g, c)
}

func valueApart(
	l *Library, i symmem.Interop, g *group, c symmem.ValueCall,
) (int64, error) {
	var got int64 // a call that was left may still write it
	err := l.apart("comparing values", func(ctx context.Context) (err error) {
		got, err = i.Value(ctx, g.Group, c)
		return err
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}
