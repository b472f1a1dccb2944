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

// smallGroup is a communicator, the connection of one rank to the others of a group. Its control
// plane exchanges small messages, compares calls, ends waits, and names missing ranks.
type smallGroup struct {
	device *smallDevice
	cfg    driver.GroupConfig
	plane  control.Plane
	check  atomic.Bool // whether ranks compare their calls

	running sync.Mutex // held while a collective runs

	// mu guards the fields below.
	mu       sync.Mutex
	tail     chan struct{}        // closed when the last queued collective is done
	launched [driver.Paths]uint64 // number of calls on each path
	windows  map[driver.SegmentKey]*smallWindow
}

func (c *smallGroup) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	return c.plane.Exchange(ctx, lane, payload)
}

func (c *smallGroup) Decide(proposal []byte) []byte { return c.plane.Decide(proposal) }

func (c *smallGroup) Departed() (lost, left []int) { return c.plane.Departed() }

// smallWindow is a registered segment. Calls do not use it, because all data passes through the
// control plane.
type smallWindow struct {
	group *smallGroup
	key   driver.SegmentKey
}

// Register checks that all ranks register a segment with the same key and size.
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

	description := fmt.Append(nil, key, segment.Bytes())
	all, err := c.plane.Exchange(ctx, driver.LaneControl, description)
	if err != nil {
		return nil, err
	}

	for _, other := range all {
		if string(other) != string(description) {
			return nil, fmt.Errorf("ranks register different segments: %q", all)
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	w := &smallWindow{group: c, key: key}
	c.windows[key] = w
	return w, nil
}

func (w *smallWindow) Deregister() error {
	w.group.mu.Lock()
	defer w.group.mu.Unlock()
	if w.group.windows[w.key] != w {
		return fmt.Errorf("deregistering a window: %w", driver.ErrClosed)
	}

	delete(w.group.windows, w.key)
	return nil
}

// smallPlan is a call of a group. It is a driver.Offer, which can refuse the call, until Take makes
// it a driver.Plan, which can be launched any number of times.
type smallPlan struct {
	driver.Call
	group *smallGroup
}

func (c *smallGroup) Offer(call driver.Call) driver.Offer {
	return &smallPlan{Call: call, group: c}
}

var errUnsupportedCall = fmt.Errorf("the small backend lacks this call: %w", driver.ErrUnsupported)

// Refusal returns an error unless p is one of the collectives that run and computeOutput implement.
func (p *smallPlan) Refusal(path driver.Path) error {
	// The backend adds elements in the order of ranks. Some groups require another formula.
	isOtherFormula := p.Operation.Reduces() && p.group.cfg.Formula > driver.RankOrder
	isMessage := p.Operation.PointToPoint()
	hasSplits := p.Splits != nil
	isNormOrRoute := p.Norm != nil || p.Route != nil
	if path != driver.PathPlain || isOtherFormula || isMessage || hasSplits || isNormOrRoute {
		return errUnsupportedCall
	}

	return nil
}

// Take sets the path and the digest, a hash by which ranks compare their calls.
func (p *smallPlan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	return p, nil
}

func (p *smallPlan) Prepared() *driver.Call { return &p.Call }

func (c *smallGroup) Launch(target driver.Stream, p driver.Plan) error {
	plan, ok := p.(*smallPlan)
	if !ok || plan.group != c {
		return errors.New("the plan belongs to another group")
	}

	return target.(*smallStream).queue(plan.launch)
}

// launch assigns the next ticket, which is the call's position in the group's order, and returns
// the call's work. The work waits until the work of all earlier tickets is done, because streams
// may start work in any order.
func (p *smallPlan) launch() (smallWork, error) {
	c := p.group
	c.mu.Lock()
	defer c.mu.Unlock()
	cause := c.plane.Cause()
	if errors.Is(cause, driver.ErrClosed) {
		return nil, cause // a call after Close does not affect the stream
	}

	if cause != nil {
		failStream := func(error) error { return cause }
		return failStream, cause
	}

	ticket := c.plane.Submit()
	check := c.check.Load()
	before := c.tail
	done := make(chan struct{})
	c.tail = done
	c.launched[p.Path]++
	return func(streamErr error) error {
		defer close(done)
		<-before
		if streamErr != nil {
			// This rank skips the call, so the other ranks must not wait for it.
			_ = c.plane.Fail(&driver.PriorError{
				InCall: fmt.Sprintf("%v %d of group %s", p.Operation, ticket, c.cfg.Name()),
				Rank:   c.cfg.Ranks[c.cfg.Rank], Cause: streamErr,
			})
			return nil // the stream already has its first error
		}

		return p.run(ticket, check)
	}, nil
}

// run compares the ranks' calls, exchanges the inputs, and computes the output.
func (p *smallPlan) run(ticket uint64, check bool) error {
	c, call := p.group, p.Call
	c.running.Lock()
	defer c.running.Unlock()
	if !check {
		call.Digest = 0 // the same on all ranks, so that Compare finds no difference
	}

	if err := c.plane.Compare(ticket, &call); err != nil {
		return err
	}

	inputs, err := p.exchangeInputs()
	if err != nil {
		return err
	}

	ranks := len(c.cfg.Ranks)
	for r, input := range inputs {
		if want, _ := call.Spans(ranks, r); int64(len(input)) != want {
			return c.plane.Fail(fmt.Errorf("rank %d of group %s sent %d bytes, want %d",
				c.cfg.Ranks[r], c.cfg.Name(), len(input), want))
		}
	}

	_, recvBytes := call.Spans(ranks, c.cfg.Rank)
	p.computeOutput(memoryAt(call.Recv, recvBytes), inputs)
	return nil
}

// exchangeInputs sends this rank's send buffer to all ranks, and returns the send buffers of all
// ranks. All ranks make the same number of exchanges, of at most MaxPayload bytes each.
func (p *smallPlan) exchangeInputs() ([][]byte, error) {
	c := p.group
	ranks := len(c.cfg.Ranks)
	sendBytes, _ := p.Spans(ranks, c.cfg.Rank)
	rest := memoryAt(p.Send, sendBytes)
	// The root has the largest send buffer: in a Scatter only the root has one, and in all other
	// operations the buffers have the same size.
	largestBytes, _ := p.Spans(ranks, p.Root)
	inputs := make([][]byte, ranks)
	for range (largestBytes + driver.MaxPayload - 1) / driver.MaxPayload {
		payload := rest[:min(len(rest), driver.MaxPayload)]
		rest = rest[len(payload):]
		got, err := c.plane.Exchange(context.Background(), driver.LaneCalls, payload)
		if err != nil {
			return nil, err
		}

		for r := range got {
			inputs[r] = append(inputs[r], got[r]...)
		}
	}

	return inputs, nil
}

// computeOutput writes this rank's output to dst. inputs holds the send buffers of all ranks.
func (p *smallPlan) computeOutput(dst []byte, inputs [][]byte) {
	rank := p.group.cfg.Rank
	isOutputElsewhere := p.Operation == driver.Reduce && rank != p.Root
	if len(dst) == 0 || isOutputElsewhere {
		return
	}

	partBytes := int(p.Count) * p.DataType.Size()
	parts := make([][]byte, len(inputs)) // the part of each input that is for this rank
	for r, input := range inputs {
		switch p.Operation {
		case driver.ReduceScatter, driver.AllToAll:
			parts[r] = input[rank*partBytes : (rank+1)*partBytes]
		default:
			parts[r] = input
		}
	}

	switch {
	case p.Operation.Reduces():
		p.reduce(dst, parts)
	case p.Operation == driver.Broadcast:
		copy(dst, parts[p.Root])
	case p.Operation == driver.Scatter:
		copy(dst, parts[p.Root][rank*partBytes:])
	default:
		copy(dst, slices.Concat(parts...))
	}
}

// reduce writes the sum of the parts to dst, or the result of another reduction.
func (p *smallPlan) reduce(dst []byte, parts [][]byte) {
	sources := make([]unsafe.Pointer, len(parts))
	for r := range parts {
		sources[r] = unsafe.Pointer(unsafe.SliceData(parts[r]))
	}

	dsts := []unsafe.Pointer{unsafe.Pointer(unsafe.SliceData(dst))}
	count := int(p.Count)
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
	case <-c.tail: // all collectives are done
	default:
		c.plane.Withdraw() // this rank will never join the unfinished collectives
	}

	c.mu.Unlock()
	err := c.plane.Close() // makes the running collective return
	c.running.Lock()       // wait until it has returned
	defer c.running.Unlock()
	return err
}
