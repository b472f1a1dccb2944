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

// needsRegistration reports whether buffers must be registered on all ranks before the measurement
// of a path. The plain path needs no registration. With PathAuto, the first collective registers
// the buffers.
func needsRegistration(path symmem.PathChoice) bool {
	return path > symmem.PathPlain // the constants after PathPlain are the paths that need it
}

// world holds the resources for measurements: a Runtime of this rank, and the buffers of the
// calls. Two worlds can share a Runtime and differ in their buffers.
type world struct {
	level int // index of the Runtime's check level in CollectiveOptions.Checks
	rt    *symmem.Runtime
	// recvStream lets sendrecv receive while it sends on the default stream.
	recvStream *symmem.Stream
	send, recv symmem.Buffer      // set by allocate
	gatherer   *workload.Gatherer // exchanges numbers between the ranks
	// path is the path choice that is in effect in the Runtime. It is a pointer because worlds that
	// share a Runtime share the choice.
	path *symmem.PathChoice
}

// BindRank binds this process to one of the processors that it may use. Ranks with successive
// numbers get successive processors.
func BindRank(rank int) error {
	processors, err := sys.Affinity()
	if err != nil {
		return err
	}

	// The host backend derives from GOMAXPROCS how many processors the ranks share. Go would adapt
	// an implicit GOMAXPROCS to the bound process, but keeps an explicit one.
	current := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(current)
	return sys.BindProcess(processors[rank%len(processors)])
}

// openWorld opens a Runtime with the check level o.Checks[level], and allocates buffers for the
// largest size. It replaces CheckDefault in o.Checks[level] with the level that the Runtime chose.
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
		closeErr := rt.Close()
		return nil, errors.Join(err, closeErr)
	}

	return w, nil
}

// prepare sets the fields other than level, rt and path.
func (w *world) prepare(ctx context.Context, o *CollectiveOptions) error {
	recvStream, err := w.rt.NewStream()
	if err != nil {
		return err
	}

	w.recvStream = recvStream
	bytes := o.bufferBytes(slices.Max(o.Sizes), w.rt.Size())
	if err := w.allocate(ctx, o, bytes); err != nil {
		return fmt.Errorf("allocating buffers of %d bytes: %w", bytes, err)
	}

	w.gatherer, err = workload.NewGatherer(ctx, w.rt, w.rt.World(), w.rt.DefaultStream())
	return err
}

// allocate sets w.send and w.recv to new buffers of the given size. The buffers are outside
// windows (memory that is registered on all ranks) if o.OutsideWindows is set or o.Path is the
// plain path. Otherwise, allocate registers the buffers if the path needs it.
func (w *world) allocate(ctx context.Context, o *CollectiveOptions, bytes int64) error {
	pool, err := w.rt.NewPool(symmem.PoolOptions{Domain: w.rt.World()})
	if err != nil {
		return err
	}

	if o.Path == symmem.PathPlain || o.OutsideWindows {
		scope := pool.BeginDisabled()
		defer scope.Abandon()
		return w.allocateBuffers(scope, bytes)
	}

	scope := pool.Begin(w.rt.World())
	defer scope.Abandon() // has no effect after End
	if err := w.allocateBuffers(scope, bytes); err != nil {
		return err
	}

	if !needsRegistration(o.Path) {
		return nil
	}

	return scope.End(ctx) // registers the buffers
}

func (w *world) allocateBuffers(scope *symmem.Scope, bytes int64) error {
	send, err := scope.Alloc(bytes)
	if err != nil {
		return err
	}

	w.send = send
	w.recv, err = scope.Alloc(bytes)
	return err
}

// synchronize waits until the work of this rank on both streams has completed.
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

// gather sends the number own to all ranks, and returns the numbers of all ranks, by rank. All
// ranks must call it.
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

// call is a collective call to measure. The embedded Transfer contains its arguments, such as the
// ranges of the world's buffers that it sends and receives.
type call struct {
	workload.Transfer
	// recvStream is the stream on which sendrecv receives, or nil for the default stream.
	recvStream *symmem.Stream
}

// newCall returns a call of op with the given count argument. A call in place sends from the
// receive buffer and does not use the send buffer.
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
	// In a graph, and on devices whose memory the processor cannot access, the default stream both
	// sends and receives.
	if o.GraphCalls == 0 && w.rt.Device().Addressable {
		c.recvStream = w.recvStream
	}

	src := w.send
	if inPlace {
		src = w.recv
	}

	if err := c.Place(src.Memory(), w.recv.Memory()); err != nil {
		return nil, err
	}

	return c, nil
}

// explain returns the path that a call would take, and why. It does not make the call.
func (w *world) explain(c *call) (symmem.Explanation, error) {
	return w.rt.World().Explain(c.Operation, c.Send, c.Recv, c.Count, c.DataType)
}

// refusalReason sets the path choice of the Runtime, and returns the reason why a call cannot take
// this path. If the call can, the reason is "". All ranks must call refusalReason.
func (w *world) refusalReason(
	ctx context.Context, o *CollectiveOptions, row *Row, inPlace bool, choice symmem.PathChoice,
) (string, error) {
	if row.Operation.kind == symmem.OpSend { // sends only take the plain path
		return row.Operation.Name + " has no buffers that peers read", nil
	}

	c, err := w.newCall(o, row.Operation, row.Count, inPlace)
	if err != nil {
		return "", err
	}

	if err := w.setPath(ctx, choice); err != nil {
		return "", err
	}

	explanation, err := w.explain(c)
	if err != nil {
		return "", err
	}

	if explanation.Path == choice.String() {
		return "", nil
	}

	return explanation.Why, nil
}

// possiblePaths returns the paths that a call can take. The first is the plain path, which every
// call can take. Like refusalReason, possiblePaths changes the path choice of the Runtime.
func (w *world) possiblePaths(
	ctx context.Context, o *CollectiveOptions, row *Row, inPlace bool,
) ([]symmem.PathChoice, error) {
	paths := []symmem.PathChoice{symmem.PathPlain}
	otherPaths := []symmem.PathChoice{symmem.PathWindow, symmem.PathDirect, symmem.PathTwoLevel}
	for _, path := range otherPaths {
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

// newOutsideWorld returns a world with the Runtime of w and new buffers outside windows. It returns
// nil if the direct path, for which such buffers are measured, is not available.
func (w *world) newOutsideWorld(ctx context.Context, o *CollectiveOptions) (*world, error) {
	if err := w.setPath(ctx, symmem.PathDirect); err != nil {
		return nil, err
	}

	// A barrier takes the direct path wherever that path is available.
	var noBuffer symmem.Memory
	const noElements = 0
	explanation, err := w.rt.World().Explain(
		symmem.OpBarrier, noBuffer, noBuffer, noElements, o.DataType)
	if err != nil {
		return nil, err
	}

	if explanation.Path != symmem.PathDirect.String() {
		return nil, nil
	}

	outside := *w // shares all but the buffers
	options := *o
	options.OutsideWindows = true
	bytes := o.bufferBytes(min(slices.Max(o.Sizes), maxOutsideBytes), w.rt.Size())
	if err := outside.allocate(ctx, &options, bytes); err != nil {
		return nil, fmt.Errorf("allocating buffers of %d bytes outside windows: %w", bytes, err)
	}

	return &outside, nil
}

// disableUnsupportedGraphs sets o.GraphCalls to 0 if the backend does not support graphs. To find
// out, it captures an empty graph.
func (w *world) disableUnsupportedGraphs(o *CollectiveOptions) error {
	if o.GraphCalls == 0 {
		return nil
	}

	stream := w.rt.DefaultStream()
	err := stream.BeginCapture()
	if errors.Is(err, symmem.ErrUnsupported) {
		o.GraphCalls = 0
		return nil
	}

	if err != nil {
		return err
	}

	graph, err := stream.EndCapture()
	if err != nil {
		return err
	}

	return graph.Close()
}
