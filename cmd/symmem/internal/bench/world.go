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

// needsRegistration reports whether the buffers for a path must be registered before the
// measurement. With PathAuto, the first collective registers the buffers.
func needsRegistration(path symmem.PathChoice) bool { return path > symmem.PathPlain }

// world holds a Runtime of this rank and a pair of buffers. Several worlds can share a Runtime.
type world struct {
	level      int // index of the Runtime's check level in CollectiveOptions.Checks
	rt         *symmem.Runtime
	recvStream *symmem.Stream // see call
	send, recv symmem.Buffer
	gatherer   *workload.Gatherer
	path       *symmem.PathChoice // the current path choice, shared by the worlds of a Runtime
}

// BindRank binds this process to one of the processors that it may use. Ranks with successive
// numbers get successive processors.
func BindRank(rank int) error {
	processors, err := sys.Affinity()
	if err != nil {
		return err
	}
	// Setting GOMAXPROCS explicitly keeps it constant. The host backend derives from it how many
	// processors the ranks share.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	return sys.BindProcess(processors[rank%len(processors)])
}

// openWorld opens a Runtime with the check level o.Checks[level], and allocates buffers for the
// largest size. If the level is CheckDefault, it replaces it with the level in use.
func openWorld(ctx context.Context, o *CollectiveOptions, level int) (*world, error) {
	options := symmem.Options{
		Backend: o.Backend, Tuning: o.Tuning, Path: o.Path, Check: o.Checks[level],
		Timeout: o.Timeout,
	}
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	o.Checks[level] = rt.Check()
	w := &world{level: level, rt: rt, path: &options.Path}
	if err := w.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	return w, nil
}

func (w *world) prepare(ctx context.Context, o *CollectiveOptions) (err error) {
	if w.recvStream, err = w.rt.NewStream(); err != nil {
		return err
	}
	bytes := o.bufferBytes(slices.Max(o.Sizes), w.rt.Size())
	if err := w.allocate(ctx, o, bytes); err != nil {
		return fmt.Errorf("allocating buffers of %d bytes: %w", bytes, err)
	}
	w.gatherer, err = workload.NewGatherer(ctx, w.rt, w.rt.World(), w.rt.DefaultStream())
	return err
}

// allocate sets w.send and w.recv to new buffers of the given size. The options determine whether
// the buffers are outside windows, and whether it registers them.
func (w *world) allocate(ctx context.Context, o *CollectiveOptions, bytes int64) error {
	pool, err := w.rt.NewPool(symmem.PoolOptions{Domain: w.rt.World()})
	if err != nil {
		return err
	}
	if o.Path == symmem.PathPlain || o.OutsideWindows {
		s := pool.BeginDisabled()
		defer s.Abandon()
		return w.allocateBuffers(s, bytes)
	}
	s := pool.Begin(w.rt.World())
	defer s.Abandon()
	if err := w.allocateBuffers(s, bytes); err != nil || !needsRegistration(o.Path) {
		return err
	}
	return s.End(ctx)
}

func (w *world) newOutsideWorld(
	ctx context.Context, o *CollectiveOptions, bytes int64,
) (*world, error) {
	outside := *w
	options := *o
	options.OutsideWindows = true
	if err := outside.allocate(ctx, &options, bytes); err != nil {
		return nil, fmt.Errorf("allocating buffers of %d bytes outside windows: %w", bytes, err)
	}
	return &outside, nil
}

func (w *world) allocateBuffers(s *symmem.Scope, bytes int64) (err error) {
	if w.send, err = s.Alloc(bytes); err != nil {
		return err
	}
	w.recv, err = s.Alloc(bytes)
	return err
}

func (w *world) synchronize(ctx context.Context) error {
	if err := w.rt.DefaultStream().Synchronize(ctx); err != nil {
		return err
	}
	return w.recvStream.Synchronize(ctx)
}

// barrier waits until all ranks have called it and the work of this rank has completed.
func (w *world) barrier(ctx context.Context) error {
	if err := w.rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return w.synchronize(ctx)
}

// gather returns the numbers that all ranks pass, by rank.
func (w *world) gather(ctx context.Context, own int64) ([]int64, error) {
	return w.gatherer.Numbers(ctx, own)
}

// setPath sets the path choice of the Runtime, if it is not already set. All ranks must call it.
func (w *world) setPath(ctx context.Context, choice symmem.PathChoice) error {
	if choice == *w.path {
		return nil
	}
	if err := w.rt.World().SetPath(ctx, choice); err != nil {
		return err
	}
	*w.path = choice
	return nil
}

// call is a call to measure, with its ranges in the buffers of a world.
type call struct {
	workload.Transfer
	// recvStream is the stream on which sendrecv receives, or nil for the default stream.
	recvStream *symmem.Stream
}

// newCall returns a call of an operation. A call in place uses only the receive buffer.
func (w *world) newCall(
	o *CollectiveOptions, op *Operation, count int64, inPlace bool,
) (*call, error) {
	c := &call{Transfer: workload.Transfer{
		Pattern: workload.Pattern{
			Operation: op.kind, DataType: o.DataType, ReduceOp: o.ReduceOp, Count: count,
			Ranks: w.rt.Size(),
		},
		Group: w.rt.World(),
	}}
	if o.GraphCalls == 0 && w.rt.Device().Addressable {
		c.recvStream = w.recvStream
	}
	src := w.send
	if inPlace {
		src = w.recv
	}
	return c, c.Place(src.Memory(), w.recv.Memory())
}

func (w *world) explain(c *call) (symmem.Explanation, error) {
	return w.rt.World().Explain(c.Operation, c.Send, c.Recv, c.Count, c.DataType)
}

// refusalReason returns the reason why a call cannot take the requested path, or "" if it can.
func (w *world) refusalReason(
	ctx context.Context, o *CollectiveOptions, row *Row, inPlace bool, choice symmem.PathChoice,
) (string, error) {
	if row.Operation.kind == symmem.OpSend {
		return row.Operation.Name + " has no buffers that peers read", nil
	}
	c, err := w.newCall(o, row.Operation, row.Count, inPlace)
	if err != nil {
		return "", err
	}
	if err := w.setPath(ctx, choice); err != nil {
		return "", err
	}
	e, err := w.explain(c)
	if err != nil || e.Path == choice.String() {
		return "", err
	}
	return e.Why, nil
}

// possiblePaths returns the paths that a call can take. The first is the plain path.
func (w *world) possiblePaths(
	ctx context.Context, o *CollectiveOptions, row *Row, inPlace bool,
) ([]symmem.PathChoice, error) {
	paths := []symmem.PathChoice{symmem.PathPlain}
	for _, path := range []symmem.PathChoice{
		symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel,
	} {
		reason, err := w.refusalReason(ctx, o, row, inPlace, path)
		if err != nil {
			return nil, err
		}
		if reason == "" {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// openOutsideWorld returns a world with the Runtime of w and buffers outside windows. If the
// direct path is not available, which it determines with a barrier, it returns nil.
func (w *world) openOutsideWorld(ctx context.Context, o *CollectiveOptions) (*world, error) {
	if err := w.setPath(ctx, symmem.PathDirect); err != nil {
		return nil, err
	}
	noBuffer := symmem.Memory{}
	e, err := w.rt.World().Explain(symmem.OpBarrier, noBuffer, noBuffer, 0, o.DataType)
	if err != nil || e.Path != symmem.PathDirect.String() {
		return nil, err
	}
	bytes := o.bufferBytes(min(slices.Max(o.Sizes), maxOutsideBytes), w.rt.Size())
	return w.newOutsideWorld(ctx, o, bytes)
}

// disableUnsupportedGraphs sets o.GraphCalls to 0 if the backend does not support graphs, which it
// determines by capturing an empty graph.
func (w *world) disableUnsupportedGraphs(o *CollectiveOptions) error {
	if o.GraphCalls == 0 {
		return nil
	}
	s := w.rt.DefaultStream()
	err := s.BeginCapture()
	if errors.Is(err, symmem.ErrUnsupported) {
		o.GraphCalls = 0
		return nil
	}
	if err != nil {
		return err
	}
	graph, err := s.EndCapture()
	if err != nil {
		return err
	}
	return graph.Close()
}
