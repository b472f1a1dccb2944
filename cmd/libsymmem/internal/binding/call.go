package binding

import (
	"context"
	"errors"
	"fmt"
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
	call, err := c.resolve(g)
	if err != nil {
		return err
	}
	s, err := r.stream(c.Stream)
	if err != nil {
		return err
	}
	if err := r.covered(call.Send, call.Recv); err != nil {
		return err
	}
	if call.Operation.UsesWindows() {
		if err := r.takeOver(g, c.Stream, call.Send, call.Recv); err != nil {
			return err
		}
	}
	err = r.rt.Interop().At(c.Site).Do(context.Background(), g.Group, call, s)
	if err == nil && c.From != nil && call.Arrived == nil {
		c.From(c.Root)
	}
	return err
}

// resolve checks what the types of Go would narrow, and finds the lengths of the buffers.
func (c *Call) resolve(g *group) (symmem.Call, error) {
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
		return c.split(call, g.Size())
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
	call.Send, call.Recv = foreign(c.Send, send), foreign(c.Recv, recv)
	return call, nil
}

// split checks the splits of a call and finds the lengths of its buffers.
func (c *Call) split(call symmem.Call, ranks int) (symmem.Call, error) {
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
	call.Send = foreign(c.Send, size*reach(whole.SendCounts, whole.SendOffsets))
	call.Recv = foreign(c.Recv, size*reach(whole.RecvCounts, whole.RecvOffsets))
	return call, nil
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

// foreign is the memory at an address that C has given.
func foreign(address uintptr, bytes int64) symmem.Memory {
	return symmem.Interop{}.Memory(address, bytes)
}

// covered returns an error for memory of open or closed pools that is not part of an allocated
// buffer.
func (r *rank) covered(memory ...symmem.Memory) error {
	for _, m := range memory {
		if m.Bytes() == 0 {
			continue
		}
		covers := func(m symmem.Memory) error {
			return r.library.kept.covers(m, r.rt.Interop().Ordinal() < 0)
		}
		if p := r.owner(m.Address()); p != nil {
			covers = p.covers
		}
		if err := covers(m); err != nil {
			return err
		}
	}
	return nil
}

// covers refuses memory that was not handed out, or not as long.
func (p *pool) covers(m symmem.Memory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.covers(m.Address(), m.Bytes())
}

// takeOver registers the pools of buffers where the group has not yet. During a capture it leaves
// that, and the call takes the path of memory that is in no pool, on all ranks alike.
func (r *rank) takeOver(g *group, stream uintptr, memory ...symmem.Memory) error {
	interop := r.rt.Interop()
	for _, m := range memory {
		p := r.owner(m.Address())
		if m.Bytes() == 0 || p == nil || !interop.Pending(p.Pool, g.Group, m) ||
			interop.Captured(stream) {
			continue
		}
		err := r.library.apart("registering", func(ctx context.Context) error {
			return p.Register(ctx, g.Group)
		})
		if err != nil && !errors.Is(err, symmem.ErrCapturing) {
			return err
		}
	}
	return nil
}

// Explain says which path a collective would take now, and why, as JSON.
func (l *Library) Explain(handle uint64, c *Call) (string, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return "", err
	}
	call, err := c.resolve(g)
	if err != nil {
		return "", err
	}
	e, err := g.Explain(call.Operation, call.Send, call.Recv, call.Count, call.Type)
	if err != nil {
		return "", err
	}
	for _, m := range [...]symmem.Memory{call.Send, call.Recv} {
		p := r.owner(m.Address())
		if p != nil && r.rt.Interop().Pending(p.Pool, g.Group, m) {
			e.Registers = true
		}
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

// Norm queues one on a foreign stream, and registers the pools of its input and output before.
func (l *Library) Norm(handle uint64, n *Norm) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	args, err := n.resolve()
	if err != nil {
		return err
	}
	s, err := r.stream(n.Stream)
	if err != nil {
		return err
	}
	if err := r.covered(args.Input, args.Output, args.Residual, args.Weight); err != nil {
		return err
	}
	if err := r.takeOver(g, n.Stream, args.Input, args.Output); err != nil {
		return err
	}
	return r.rt.Interop().At(n.Site).AllReduceRMSNorm(context.Background(), g.Group, args, s)
}

// resolve finds the lengths of the tensors.
func (n *Norm) resolve() (symmem.NormArgs, error) {
	const most = 1 << 44
	args := symmem.NormArgs{Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon}
	if n.Rows < 0 || n.Hidden < 1 || n.Hidden > driver.MaxHidden || n.Rows > most/n.Hidden {
		return args, fmt.Errorf("%d rows of %d elements: %w", n.Rows, n.Hidden, symmem.ErrInvalid)
	}
	row := n.Hidden * int64(symmem.BFloat16.Size())
	args.Input = foreign(n.Input, n.Rows*row)
	args.Residual = foreign(n.Residual, n.Rows*row)
	args.Output = foreign(n.Output, n.Rows*row)
	args.Weight = foreign(n.Weight, row)
	return args, nil
}

// Value makes one call on a value of the ranks of a group, under a name, for a call site: see
// symmem.Interop.Value.
//
// On one machine a wait asks its caller in the way of collectives; between machines the call has a
// thread of its own. That takes a closure, which must not be garbage of every call elsewhere.
func (l *Library) Value(
	handle uint64, operation int, name string, value int64, site uint32,
) (int64, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return 0, err
	}
	interop := r.rt.Interop().At(site)
	if g.machines <= 1 {
		return interop.Value(context.Background(), g.Group, operation, name, value)
	}
	var got int64 // a call that was left may still write it
	err = l.apart("comparing values", func(ctx context.Context) (err error) {
		got, err = interop.Value(ctx, g.Group, operation, name, value)
		return err
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}

// AgreeString compares a text on the ranks of a group, and waits as Value does: see
// symmem.Interop.AgreeString.
func (l *Library) AgreeString(handle uint64, name, value string, site uint32) error {
	return l.compared(handle, site, func(ctx context.Context, i symmem.Interop, g *group) error {
		return i.AgreeString(ctx, g.Group, name, value)
	})
}

// Step compares which step begins on the ranks of a group, and waits as Value does: see
// symmem.Interop.Step.
func (l *Library) Step(handle uint64, what string, site uint32) error {
	return l.compared(handle, site, func(ctx context.Context, i symmem.Interop, g *group) error {
		return i.Step(ctx, g.Group, what)
	})
}

// compared makes a comparison in a group, on a separate thread where the group spans machines.
func (l *Library) compared(
	handle uint64, site uint32, do func(context.Context, symmem.Interop, *group) error,
) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	interop := r.rt.Interop().At(site)
	if g.machines <= 1 {
		return do(context.Background(), interop, g)
	}
	return l.apart("comparing values", func(ctx context.Context) error {
		return do(ctx, interop, g)
	})
}
