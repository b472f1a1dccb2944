package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/sys"
)

// registered reports whether buffers for a path are registered before measuring. Those of the plain
// path are outside of windows, and with auto the first collective registers them.
func registered(path symmem.PathChoice) bool { return path > symmem.PathPlain }

// lane is one rank's world at one check level, with its buffers.
type lane struct {
	// level is the check level, as an index into Collective.Checks.
	level      int
	rt         *symmem.Runtime
	second     *symmem.Stream
	send, recv symmem.Buffer
	// gatherer exchanges measurements between ranks.
	gatherer *workload.Gatherer
	// set is the current path choice of the world. Lanes over one world share it.
	set *symmem.PathChoice
}

// BindRank binds this process to a processor for its rank, and keeps GOMAXPROCS, so that the host
// backend still counts the processors that all ranks share.
func BindRank(rank int) error {
	processors, err := sys.Affinity()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	return sys.BindProcess(processors[rank%len(processors)])
}

// openLane joins the world once more, with a check level, and allocates both buffers.
func openLane(ctx context.Context, o *Collective, level int) (*lane, error) {
	options := symmem.Options{
		Backend: o.Backend, Tuning: o.Tuning, Path: o.Path, Check: o.Checks[level],
		Timeout: o.Timeout,
	}
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	o.Checks[level] = rt.Check() // resolves the backend's default
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
	bytes := o.room(slices.Max(o.Sizes), l.rt.Size())
	if err := l.allocate(ctx, o, bytes); err != nil {
		return fmt.Errorf("making buffers of %d bytes: %w", bytes, err)
	}
	l.gatherer, err = workload.NewGatherer(ctx, l.rt, l.rt.World(), l.rt.DefaultStream())
	return err
}

func (l *lane) allocate(ctx context.Context, o *Collective, bytes int64) error {
	pool, err := l.rt.NewPool(symmem.PoolOptions{Domain: l.rt.World()})
	if err != nil {
		return err
	}
	if o.Path == symmem.PathPlain || o.Apart {
		s := pool.BeginDisabled()
		defer s.Abandon()
		return l.both(s, bytes)
	}
	s := pool.Begin(l.rt.World())
	defer s.Abandon()
	if err := l.both(s, bytes); err != nil || !registered(o.Path) {
		return err
	}
	return s.End(ctx)
}

// apart returns a lane over the same world whose buffers are outside of windows.
func (l *lane) apart(ctx context.Context, o *Collective, bytes int64) (*lane, error) {
	own, config := *l, *o
	config.Apart = true
	if err := own.allocate(ctx, &config, bytes); err != nil {
		return nil, fmt.Errorf("making buffers of %d bytes outside windows: %w", bytes, err)
	}
	return &own, nil
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

// meet waits until all ranks have called it.
func (l *lane) meet(ctx context.Context) error {
	if err := l.rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return l.finish(ctx)
}

// gather returns the numbers of all ranks.
func (l *lane) gather(ctx context.Context, mine int64) ([]int64, error) {
	return l.gatherer.Numbers(ctx, mine)
}

// take sets the path choice of the world, if it differs.
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

// call is one collective call on buffers of this rank.
type call struct {
	workload.Call
	// second is the stream of the receiving half of sendrecv. Without it both halves are on the
	// default stream.
	second *symmem.Stream
}

// call returns a collective with the given count on this rank's buffers.
func (l *lane) call(o *Collective, op *Operation, count int64, inPlace bool) (*call, error) {
	c := &call{Call: workload.Call{
		Pattern: workload.Pattern{
			Operation: op.kind, DataType: o.DataType, ReduceOp: o.ReduceOp, Count: count,
			Ranks: l.rt.Size(),
		},
		Group: l.rt.World(),
	}}
	if o.GraphOps == 0 && l.rt.Device().Addressable {
		c.second = l.second
	}
	from := l.send
	if inPlace {
		from = l.recv
	}
	return c, c.Place(from.Memory(), l.recv.Memory())
}

func (l *lane) explain(c *call) (symmem.Explanation, error) {
	return l.rt.World().Explain(c.Operation, c.Send, c.Recv, c.Count, c.DataType)
}

// fill fills the output with junk and writes this rank's input, if there is any.
func (r *runner) fill(ctx context.Context) error {
	if r.call.Count == 0 {
		return nil
	}
	if err := r.call.Fill(r.rt.DefaultStream()); err != nil {
		return err
	}
	return r.rt.DefaultStream().Synchronize(ctx)
}

// wrong counts the wrong elements of this rank's output.
func (r *runner) wrong(ctx context.Context) (int64, error) {
	want := r.call.Output(r.rt.Rank())
	if len(want) == 0 {
		return 0, nil
	}
	if err := r.call.Read(r.rt.DefaultStream()); err != nil {
		return 0, err
	}
	err := r.rt.DefaultStream().Synchronize(ctx)
	return r.call.Compare(r.call.Got, want).Wrong, err
}
