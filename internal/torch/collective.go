package torch

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
)

// Call is a collective as C asks for it.
type Call struct {
	Operation, Type, Op, Root, Path int
	Count                           int64
	Send, Recv                      uintptr
	Stream                          uintptr
	// Site is the number of the call site, or 0.
	Site uint32
}

// Do queues a collective on a foreign stream.
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
	if err := r.takeOver(g, c.Stream, call.Send, call.Recv); err != nil {
		return err
	}
	return r.rt.Interop().Do(context.Background(), g.Group, call, s)
}

// resolve checks what the types of Go would narrow, and finds the lengths of the buffers.
func (c *Call) resolve(g *group) (symmem.Call, error) {
	const most = 1 << 44
	call := symmem.Call{Root: c.Root, Count: c.Count, At: symmem.Site(c.Site)}
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
	if c.Count < 0 {
		return call, fmt.Errorf("count %d: %w", c.Count, symmem.ErrInvalid)
	}
	if c.Count > most/int64(g.Size()) {
		return call, fmt.Errorf("count %d: %w", c.Count, symmem.ErrOutOfRange)
	}
	resolved := driver.Call{Operation: call.Operation, DataType: call.Type, Count: call.Count}
	if call.Operation == symmem.OpAllToAllV {
		resolved.Operation = symmem.OpAllToAll // Explain takes even splits
	}
	send, recv := resolved.Spans(g.Size())
	call.Send, call.Recv = foreign(c.Send, send), foreign(c.Recv, recv)
	return call, nil
}

// foreign is the memory at an address that C has given.
func foreign(address uintptr, bytes int64) symmem.Memory {
	return symmem.Interop{}.Memory(address, bytes)
}

// takeOver looks at the buffers that lie in pools: they must be inside what was handed out, and the
// pools are registered where the group has not yet. During a capture it leaves that, and the call
// takes the path of memory that is in no pool, on all ranks alike.
func (r *rank) takeOver(g *group, stream uintptr, memory ...symmem.Memory) error {
	for _, m := range memory {
		if m.Bytes() == 0 {
			continue
		}
		p := r.owner(m.Address())
		if p == nil {
			continue
		}
		pending := r.library.words.Pending.Load()
		fresh, err := p.check(m, g, pending)
		if err != nil {
			return err
		}
		if !g.holds(p) {
			continue
		}
		if fresh && r.rt.Interop().Captured(stream) {
			continue
		}
		register := func(ctx context.Context) error { return p.Register(ctx, g.Group) }
		if fresh {
			err = r.library.apart("registering", register)
		} else {
			err = register(context.Background()) // which is quick
		}
		if err != nil && !errors.Is(err, symmem.ErrCapturing) {
			return err
		}
		if fresh && err == nil {
			p.settledWith(g, pending)
		}
	}
	return nil
}

// check is covers; fresh reports whether something may have to be registered with the group since
// it had everything.
func (p *pool) check(m symmem.Memory, g *group, pending int64) (fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[g.handle] != pending, p.live.covers(m.Address(), m.Bytes())
}

// settledWith notes that a group has everything up to a value of Words.Pending.
func (p *pool) settledWith(g *group, pending int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[uint64]int64{}
	}
	p.seen[g.handle] = pending
}

// covers refuses memory that was not handed out, or not as long.
func (p *pool) covers(m symmem.Memory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.covers(m.Address(), m.Bytes())
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
	for _, address := range [...]uintptr{c.Send, c.Recv} {
		if p := r.owner(address); p != nil && g.holds(p) && !r.complete(g, p) {
			e.Registers = true
		}
	}
	return encode(e)
}
