package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/reduce"
)

// smallGroup is a communicator whose control plane compares calls, ends waits, and names missing
// ranks.
type smallGroup struct {
	device *smallDevice
	cfg    driver.GroupConfig
	plane  control.Plane
	check  atomic.Bool

	running sync.Mutex // held while a collective runs

	// mu guards the fields below.
	mu       sync.Mutex
	tail     chan struct{} // closed when the last queued collective is done
	launched [driver.Paths]uint64
	windows  map[driver.SegmentKey]*smallWindow
}

func (c *smallGroup) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	return c.plane.Exchange(ctx, lane, payload)
}

func (c *smallGroup) Decide(proposal []byte) []byte { return c.plane.Decide(proposal) }

func (c *smallGroup) Departed() (lost, left []int) { return c.plane.Departed() }

// smallWindow is a registered segment. No path uses it.
type smallWindow struct {
	c   *smallGroup
	key driver.SegmentKey
}

func (c *smallGroup) Register(
	ctx context.Context, key driver.SegmentKey, segment driver.Segment,
) (driver.Window, error) {
	if c.device.capturing.Load() > 0 {
		return nil, driver.ErrCapturing
	}
	c.mu.Lock()
	_, registered := c.windows[key]
	c.mu.Unlock()
	if registered {
		return nil, fmt.Errorf("segment %v is already registered", key)
	}
	own := fmt.Append(nil, key, segment.Bytes())
	all, err := c.plane.Exchange(ctx, driver.LaneControl, own)
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if string(other) != string(own) {
			return nil, fmt.Errorf("ranks register different segments: %q", all)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &smallWindow{c, key}
	c.windows[key] = w
	return w, nil
}

func (w *smallWindow) Deregister() error {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.windows[w.key] != w {
		return fmt.Errorf("deregistering a window: %w", driver.ErrClosed)
	}
	delete(w.c.windows, w.key)
	return nil
}

type smallPlan struct {
	driver.Call
	c *smallGroup
}

func (c *smallGroup) Offer(call driver.Call) driver.Offer { return &smallPlan{call, c} }

var errUnsupportedCall = fmt.Errorf("the small backend lacks this call: %w", driver.ErrUnsupported)

func (p *smallPlan) Refusal(path driver.Path) error {
	isRankOrder := p.c.cfg.Formula <= driver.RankOrder || !p.Operation.Reduces()
	if path != driver.PathPlain || p.Operation.PointToPoint() || p.Splits != nil || !isRankOrder ||
		p.Operation == driver.AllReduceRMSNorm {
		return errUnsupportedCall
	}
	return nil
}

func (p *smallPlan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	return p, nil
}

func (p *smallPlan) Prepared() *driver.Call { return &p.Call }

func (c *smallGroup) Launch(target driver.Stream, p driver.Plan) error {
	plan, ok := p.(*smallPlan)
	if !ok || plan.c != c {
		return errors.New("the plan belongs to another group")
	}
	return target.(*smallStream).queue(plan.launch)
}

// launch assigns the next ticket, which is the call's position in the group's order, and returns
// the call's work. The work waits until the work of all earlier tickets is done, because streams
// may start work in any order.
func (p *smallPlan) launch() (smallWork, error) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := c.plane.Cause(); errors.Is(cause, driver.ErrClosed) {
		return nil, cause
	} else if cause != nil {
		return func(error) error { return cause }, cause
	}
	ticket, check := c.plane.Submit(), c.check.Load()
	before, done := c.tail, make(chan struct{})
	c.tail = done
	c.launched[p.Path]++
	return func(failed error) error {
		defer close(done)
		<-before
		if failed != nil {
			_ = c.plane.Fail(&driver.PriorError{
				InCall: fmt.Sprintf("%v %d of group %s", p.Operation, ticket, c.cfg.Name()),
				Rank:   c.cfg.Ranks[c.cfg.Rank], Cause: failed,
			})
			return nil
		}
		return p.run(ticket, check)
	}, nil
}

// run compares the ranks' calls, exchanges the inputs, and computes the output.
func (p *smallPlan) run(ticket uint64, check bool) error {
	c, call := p.c, p.Call
	c.running.Lock()
	defer c.running.Unlock()
	if !check {
		call.Digest = 0
	}
	if err := c.plane.Compare(ticket, &call); err != nil {
		return err
	}
	n := len(c.cfg.Ranks)
	send, recv := call.Spans(n, c.cfg.Rank)
	largest, _ := call.Spans(n, call.Root) // on the root, because in a Scatter only the root sends
	inputs, rest := make([][]byte, n), memoryAt(call.Send, send)
	for range (largest + driver.MaxPayload - 1) / driver.MaxPayload {
		part := rest[:min(len(rest), driver.MaxPayload)]
		rest = rest[len(part):]
		got, err := c.plane.Exchange(context.Background(), driver.LaneCalls, part)
		if err != nil {
			return err
		}
		for r := range got {
			inputs[r] = append(inputs[r], got[r]...)
		}
	}
	for r := range inputs {
		if want, _ := call.Spans(n, r); int64(len(inputs[r])) != want {
			return c.plane.Fail(fmt.Errorf("rank %d of group %s sent %d bytes, want %d",
				c.cfg.Ranks[r], c.cfg.Name(), len(inputs[r]), want))
		}
	}
	p.computeOutput(memoryAt(call.Recv, recv), inputs)
	return nil
}

func (p *smallPlan) computeOutput(dst []byte, inputs [][]byte) {
	rank, part := p.c.cfg.Rank, int(p.Count)*p.DataType.Size()
	parts := make([][]byte, len(inputs)) // the part of each input that is for this rank
	for r, in := range inputs {
		switch p.Operation {
		case driver.ReduceScatter, driver.AllToAll:
			parts[r] = in[rank*part : (rank+1)*part]
		default:
			parts[r] = in
		}
	}
	switch {
	case len(dst) == 0 || p.Operation == driver.Reduce && rank != p.Root:
	case p.Operation.Reduces():
		p.reduce(dst, parts)
	case p.Operation == driver.Broadcast:
		copy(dst, parts[p.Root])
	case p.Operation == driver.Scatter:
		copy(dst, parts[p.Root][rank*part:])
	default:
		copy(dst, slices.Concat(parts...))
	}
}

func (p *smallPlan) reduce(dst []byte, parts [][]byte) {
	sources := make([]unsafe.Pointer, len(parts))
	for r := range parts {
		sources[r] = unsafe.Pointer(unsafe.SliceData(parts[r]))
	}
	dsts, count := []unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(dst))}, int(p.Count)
	switch {
	case p.ReduceOp.IsAverage():
		reduce.Average(p.DataType, dsts, sources, count, reduce.Hint{})
	case p.ReduceOp.HasFactor():
		reduce.ScaledSum(p.DataType, dsts, sources, count, p.Factor, reduce.Hint{})
	default:
		reduce.Reduce(p.ReduceOp.Combine(), p.DataType, dsts, sources, count, reduce.Hint{})
	}
}

func (c *smallGroup) Launched() [driver.Paths]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.launched
}

func (c *smallGroup) SetCheck(on bool) { c.check.Store(on) }

func (c *smallGroup) Failed() <-chan struct{} { return c.plane.Failed() }

func (c *smallGroup) Cause() error { return c.plane.Cause() }

func (c *smallGroup) CheckPeers() {
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		_ = c.plane.Fail(c.plane.PeerFault("between calls of group " + c.cfg.Name()))
	}
}

func (c *smallGroup) Abort(cause error) { c.plane.Abort(cause) }

func (c *smallGroup) Close() error {
	c.mu.Lock()
	select {
	case <-c.tail:
	default:
		c.plane.Withdraw() // this rank will never join the unfinished collectives
	}
	c.mu.Unlock()
	err := c.plane.Close()
	c.running.Lock() // wait for the running collective
	defer c.running.Unlock()
	return err
}
