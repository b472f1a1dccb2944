package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"symmem"
	"symmem/internal/sys"
)

// Path is where the buffers of a collective lie, and who chooses its path.
type Path string

// The paths that are measured.
const (
	// Plain buffers are this rank's own: the collective takes the plain path.
	Plain Path = "plain"
	// Direct buffers are as Window's, and the group is set to the direct path; a collective that
	// cannot take it takes the path that Auto would without it.
	Direct Path = "direct"
	// Window buffers are registered before anything is measured, and the group is set to the window
	// path; a collective that cannot take it takes the path that Auto would.
	Window Path = "window"
	// Auto buffers come from a pool, and the first collective registers them; the tuning table
	// chooses the path.
	Auto Path = "auto"
)

// ParsePath reads the name of a path that groups can be set to.
func ParsePath(name string) (Path, error) {
	choice, err := symmem.ParsePathChoice(name)
	if err == nil && choice == symmem.PathDefault {
		err = fmt.Errorf("path %q is not one to measure", name)
	}
	return Path(name), err
}

// choice is what the groups of a path are set to.
func (p Path) choice() symmem.PathChoice {
	choice, err := symmem.ParsePathChoice(string(p))
	if err != nil {
		return symmem.PathAuto
	}
	return choice
}

// registered reports whether buffers are registered before anything is measured.
func (p Path) registered() bool { return p != Plain && p != Auto }

// ErrPath means that a collective would not take the path that was asked for.
var ErrPath = errors.New("the collective takes another path")

// lane is one rank's world at one check level, with its buffers.
type lane struct {
	// level is the check level, as an index into Collective.Checks.
	level      int
	rt         *symmem.Runtime
	second     *symmem.Stream
	send, recv symmem.Buffer
	// sent and received are the elements of the buffers.
	sent, received elements
	// desk is the pool of what ranks tell each other; none of it is registered.
	desk *symmem.Pool
	// set is what the world is set to. Lanes over one world share it.
	set *symmem.PathChoice
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
	options := symmem.Options{
		Backend: o.Backend, Tuning: o.Tuning, Path: o.Path.choice(), Check: o.Checks[level],
		Timeout: o.Timeout,
	}
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	o.Checks[level] = rt.Check() // what the backend's default is
	l := &lane{level: level, rt: rt, set: &options.Path}
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
	if err := l.allocate(ctx, o, bytes); err != nil {
		return fmt.Errorf("making buffers of %d bytes: %w", bytes, err)
	}
	if l.desk, err = l.rt.NewPool(symmem.PoolOptions{FirstSegment: deskBytes}); err != nil {
		return err
	}
	return l.look(o)
}

// look makes both buffers elements.
func (l *lane) look(o *Collective) (err error) {
	var mirror *symmem.Stream
	if !l.rt.Device().Addressable {
		mirror = l.rt.DefaultStream()
	}
	if l.sent, err = elementsOf(l.send, o.DataType, mirror); err != nil {
		return err
	}
	l.received, err = elementsOf(l.recv, o.DataType, mirror)
	return err
}

// deskBytes is plenty for what ranks tell each other.
const deskBytes = 2 << 20

func (l *lane) allocate(ctx context.Context, o *Collective, bytes int64) error {
	pool, err := l.rt.NewPool(symmem.PoolOptions{Domain: l.rt.World()})
	if err != nil {
		return err
	}
	if o.Path == Plain || o.Apart {
		s := pool.BeginDisabled()
		defer s.Abandon()
		return l.both(&s, bytes)
	}
	s := pool.Begin(l.rt.World())
	defer s.Abandon()
	if err := l.both(&s, bytes); err != nil || o.Path == Auto {
		return err
	}
	return s.End(ctx)
}

// apart is a lane over the same world whose buffers lie in no window.
func (l *lane) apart(ctx context.Context, o *Collective, bytes int64) (*lane, error) {
	own, config := *l, *o
	config.Apart = true
	if err := own.allocate(ctx, &config, bytes); err != nil {
		return nil, fmt.Errorf("making buffers of %d bytes outside windows: %w", bytes, err)
	}
	return &own, own.look(o)
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

// gather tells every rank what the others have. The memory is the device's, which the processor may
// not be able to address.
func (l *lane) gather(ctx context.Context, mine int64) ([]int64, error) {
	all := make([]int64, l.rt.Size())
	err := l.onDesk(8, int64(8*len(all)), func(send, recv symmem.Memory) error {
		s := l.rt.DefaultStream()
		if err := s.Copy(send, symmem.Host([]int64{mine})); err != nil {
			return err
		}
		if err := l.rt.World().AllGather(ctx, send, recv, 1, symmem.Int64, s); err != nil {
			return err
		}
		if err := s.Copy(symmem.Host(all), recv); err != nil {
			return err
		}
		return l.finish(ctx)
	})
	return all, err
}

// share gives every rank the message of rank 0.
func (l *lane) share(ctx context.Context, message []byte) ([]byte, error) {
	lengths, err := l.gather(ctx, int64(len(message)))
	if err != nil || lengths[0] == 0 {
		return nil, err
	}
	all := make([]byte, lengths[0])
	copy(all, message)
	err = l.onDesk(lengths[0], lengths[0], func(send, recv symmem.Memory) error {
		s, n := l.rt.DefaultStream(), lengths[0]
		if err := s.Copy(send, symmem.Host(all)); err != nil {
			return err
		}
		err := l.rt.World().Broadcast(ctx, send, recv, n, symmem.Uint8, 0, s)
		if err != nil {
			return err
		}
		if err := s.Copy(symmem.Host(all), recv); err != nil {
			return err
		}
		return l.finish(ctx)
	})
	return all, err
}

// onDesk runs a function on two buffers of the desk.
func (l *lane) onDesk(
	sendBytes, recvBytes int64, f func(send, recv symmem.Memory) error,
) (err error) {
	var parts [2]symmem.Memory
	for i, bytes := range []int64{sendBytes, recvBytes} {
		b, allocErr := l.desk.Alloc(bytes)
		if allocErr != nil {
			return allocErr
		}
		defer func() { err = errors.Join(err, b.Free()) }()
		if parts[i], err = b.Memory().Slice(0, bytes); err != nil {
			return err
		}
	}
	return f(parts[0], parts[1])
}

// take sets the world to a path choice, if it is not set to it.
func (l *lane) take(ctx context.Context, c symmem.PathChoice) error {
	if c == *l.set {
		return nil
	}
	if err := l.rt.World().SetPath(ctx, c); err != nil {
		return err
	}
	*l.set = c
	return nil
}

// call describes a collective of so many elements on this rank's buffers.
func (l *lane) call(o *Collective, op *Operation, count int64, inPlace bool) (*call, error) {
	elt := int64(o.DataType.Size())
	send, recv := op.spans(count, l.rt.Size())
	c := &call{
		count: count, dataType: o.DataType, reduceOp: o.ReduceOp,
		send: l.send.Memory(), recv: l.recv.Memory(),
	}
	if o.GraphOps == 0 && l.rt.Device().Addressable {
		c.second = l.second
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

// fill writes this rank's input and spoils the output.
func (l *lane) fill(
	ctx context.Context, o *Collective, op *Operation, count int64, inPlace bool,
) error {
	rank := int64(l.rt.Rank())
	p := o.pattern(op, count, l.rt.Size())
	send, recv := op.spans(count, l.rt.Size())
	value := func(i int64) int64 { return p.sent(rank, i) }
	spoil := func(int64) int64 { return 99 }
	if !inPlace {
		return errors.Join(
			l.sent.fill(ctx, 0, send, value), l.received.fill(ctx, 0, recv, spoil))
	}
	if send >= recv {
		return l.received.fill(ctx, 0, send, value)
	}
	return errors.Join(
		l.received.fill(ctx, 0, recv, spoil), l.received.fill(ctx, rank*count, send, value))
}

// wrong counts the wrong elements of this rank's output.
func (l *lane) wrong(
	ctx context.Context, o *Collective, op *Operation, count int64, inPlace bool,
) (int64, error) {
	rank := int64(l.rt.Rank())
	p := o.pattern(op, count, l.rt.Size())
	send, recv := op.spans(count, l.rt.Size())
	if _, has := p.wanted(rank, 0); !has {
		return 0, nil
	}
	at := int64(0)
	if inPlace && send > recv {
		at = rank * count
	}
	return l.received.wrong(ctx, at, recv, func(i int64) int64 {
		want, _ := p.wanted(rank, i)
		return want
	})
}
