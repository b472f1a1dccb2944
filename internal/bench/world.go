package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"symmem"
	"symmem/internal/sys"
)

// Path is where the buffers of a collective lie.
type Path string

// The paths.
const (
	// Plain buffers are this rank's own: the collective takes the plain path.
	Plain Path = "plain"
	// Window buffers are registered before anything is measured; a collective that would not take
	// the window path is an error.
	Window Path = "window"
	// Auto buffers come from a pool, and the first collective registers them.
	Auto Path = "auto"
)

// ErrPath means that a collective would not take the path that was asked for.
var ErrPath = errors.New("the collective takes another path")

// lane is one rank's world at one check level, with its buffers.
type lane struct {
	// level is the check level, as an index into Collective.Checks.
	level      int
	rt         *symmem.Runtime
	second     *symmem.Stream
	send, recv symmem.Buffer
	// sent and received view the buffers.
	sent, received elements
}

// BindRank binds this process to the processor of a rank, and keeps GOMAXPROCS as it is, so that
// the host backend still sees the processors that all ranks share.
func BindRank(rank int) error {
	processors, err := sys.Affinity()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	return sys.BindProcess(processors[rank%len(processors)])
}

// openLane joins the world once more, at a check level, and makes both buffers.
func openLane(ctx context.Context, o *Collective, level int) (*lane, error) {
	options := symmem.Options{Check: o.Checks[level], Timeout: o.Timeout}
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	l := &lane{level: level, rt: rt}
	if err := l.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	return l, nil
}

func (l *lane) prepare(ctx context.Context, o *Collective) (err error) {
	if l.second, err = l.rt.NewStream(); err != nil {
		return err
	}
	// Sizes are rounded up to whole elements of all ranks.
	bytes := o.MaxBytes + int64(l.rt.Size()*o.DataType.Size())
	if err := l.allocate(ctx, o.Path, bytes); err != nil {
		return fmt.Errorf("making buffers of %d bytes: %w", bytes, err)
	}
	if l.sent, err = elementsOf(l.send, o.DataType); err != nil {
		return err
	}
	l.received, err = elementsOf(l.recv, o.DataType)
	return err
}

func (l *lane) allocate(ctx context.Context, path Path, bytes int64) error {
	pool, err := l.rt.NewPool(symmem.PoolOptions{Domain: l.rt.World()})
	if err != nil {
		return err
	}
	if path == Plain {
		s := pool.BeginDisabled()
		defer s.Abandon()
		return l.both(&s, bytes)
	}
	s := pool.Begin(l.rt.World())
	defer s.Abandon()
	if err := l.both(&s, bytes); err != nil || path == Auto {
		return err
	}
	return s.End(ctx)
}

func (l *lane) both(s *symmem.Scope, bytes int64) (err error) {
	if l.send, err = s.Alloc(bytes); err != nil {
		return err
	}
	l.recv, err = s.Alloc(bytes)
	return err
}

// finish waits for all work of this rank.
func (l *lane) finish(ctx context.Context) error {
	if err := l.rt.DefaultStream().Synchronize(ctx); err != nil {
		return err
	}
	return l.second.Synchronize(ctx)
}

// meet returns when all ranks have come.
func (l *lane) meet(ctx context.Context) error {
	if err := l.rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return l.finish(ctx)
}

// gather tells every rank what the others have.
func (l *lane) gather(ctx context.Context, mine int64) ([]int64, error) {
	send, all := []int64{mine}, make([]int64, l.rt.Size())
	err := l.rt.World().AllGather(
		ctx, symmem.Host(send), symmem.Host(all), 1, symmem.Int64, nil)
	if err != nil {
		return nil, err
	}
	return all, l.finish(ctx)
}

// call describes a collective of so many elements on this rank's buffers.
func (l *lane) call(o *Collective, op *Operation, count int64, inPlace bool) (*call, error) {
	elt := int64(o.DataType.Size())
	send, recv := op.spans(count, l.rt.Size())
	c := &call{
		count: count, dataType: o.DataType, reduceOp: o.ReduceOp, second: l.second,
		send: l.send.Memory(), recv: l.recv.Memory(),
	}
	if !inPlace {
		return c, nil
	}
	var err error
	from := int64(l.rt.Rank()) * count * elt
	switch {
	case send < recv:
		c.send, err = l.recv.Memory().Slice(from, send*elt)
	case send > recv:
		c.send = l.recv.Memory()
		c.recv, err = l.recv.Memory().Slice(from, recv*elt)
	default:
		c.send = l.recv.Memory()
	}
	return c, err
}

// fill writes this rank's input and spoils the output; start returns the first element of either.
func (l *lane) fill(o *Collective, op *Operation, count int64, inPlace bool) {
	rank := int64(l.rt.Rank())
	p := o.pattern(op, count, l.rt.Size())
	send, recv := op.spans(count, l.rt.Size())
	value := func(i int64) int64 { return p.sent(rank, i) }
	spoil := func(int64) int64 { return 99 }
	if !inPlace {
		l.sent.fill(0, send, value)
		l.received.fill(0, recv, spoil)
		return
	}
	at := int64(0)
	if send < recv {
		l.received.fill(0, recv, spoil)
		at = rank * count
	}
	l.received.fill(at, send, value)
}

// wrong counts the wrong elements of this rank's output.
func (l *lane) wrong(o *Collective, op *Operation, count int64, inPlace bool) int64 {
	rank := int64(l.rt.Rank())
	p := o.pattern(op, count, l.rt.Size())
	send, recv := op.spans(count, l.rt.Size())
	if _, has := p.wanted(rank, 0); !has {
		return 0
	}
	at := int64(0)
	if inPlace && send > recv {
		at = rank * count
	}
	return l.received.wrong(at, recv, func(i int64) int64 {
		want, _ := p.wanted(rank, i)
		return want
	})
}
