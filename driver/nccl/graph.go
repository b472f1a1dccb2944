package nccl

import (
	"cmp"
	"errors"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// graphCalls holds the calls in one CUDA graph. Each launch of the graph gives each collective a
// new ticket (its number in the group).
type graphCalls struct {
	gpu           *gpu.GPU
	calls         []*capturedCall
	communicators []*communicator // in the order in which they are locked
	recordings    map[*communicator]*direct.Recording
	// orderedCommunicators use a direct.LaunchOrder.
	orderedCommunicators []*communicator
	// windowCommunicators have calls that use windows (memory registered with NCCL).
	windowCommunicators []*communicator
}

type capturedCall struct {
	plan    *plan
	message *p2p.CapturedMessage // nil for a collective
	// plainUses keeps the segments of NCCL kernels that do not access windows. NCCL may have mapped
	// these segments on other ranks.
	plainUses []*memory.UseCount
}

func newGraphCalls(g *gpu.GPU) stream.Calls {
	return &graphCalls{gpu: g, recordings: map[*communicator]*direct.Recording{}}
}

// Record adds a call to the graph. The caller must hold the locks of the stream and the
// communicator.
func (gc *graphCalls) Record(s *stream.Stream, planned driver.Plan) error {
	p := planned.(*plan)
	c := p.c
	if err := errors.Join(c.Cause(), c.checkOpen()); err != nil {
		return err
	}
	if !p.Operation.PointToPoint() {
		p = p.copyAt(gc.nextPosition(c))
		if err := c.enqueue(p, s); err != nil {
			return err
		}
		gc.add(&capturedCall{plan: p})
		return nil
	}
	// A Send waits until the previous launch's message has been copied.
	s.Capture.HasOtherWaits = true
	return c.messages.Record(s, messagePlan(p), func(m *p2p.CapturedMessage) {
		gc.add(&capturedCall{plan: p, message: m})
	})
}

func (gc *graphCalls) add(call *capturedCall) {
	gc.calls = append(gc.calls, call)
	c := call.plan.c
	if !slices.Contains(gc.communicators, c) {
		gc.communicators = append(gc.communicators, c)
		slices.SortFunc(gc.communicators, compareLockPositions)
		c.graphs.Add(1)
	}
	if call.plan.Path == driver.PathWindow && !slices.Contains(gc.windowCommunicators, c) {
		gc.windowCommunicators = append(gc.windowCommunicators, c)
		c.windowGraphs.Add(1)
	}
	if call.hasPlainKernels() {
		c.comm.mayMapCaptured.Store(true)
		call.plainUses = call.plan.segmentUseCounts()
		c.device.memory.UseCounts.AddPlainCalls(call.plainUses)
	}
	needsOrder := c.direct.unavailableReason == "" && !call.plan.Operation.PointToPoint()
	if needsOrder && !slices.Contains(gc.orderedCommunicators, c) {
		gc.orderedCommunicators = append(gc.orderedCommunicators, c)
	}
}

func (call *capturedCall) hasPlainKernels() bool {
	return call.message == nil && call.plan.usesNCCL() && call.plan.Path != driver.PathWindow
}

func compareLockPositions(a, b *communicator) int {
	return cmp.Compare(a.lockPosition, b.lockPosition)
}

// nextPosition requires c.mu.
func (gc *graphCalls) nextPosition(c *communicator) driver.Recorded {
	r := gc.recordings[c]
	if r == nil {
		r = c.recorder.recordings.NewRecording(0)
		gc.recordings[c] = r
	}
	return r.NextPosition()
}

// Launch numbers the calls and queues the graph. The caller must hold the locks of the graph and
// the stream.
func (gc *graphCalls) Launch(graph *stream.Graph, s *stream.Stream) error {
	for _, c := range gc.communicators {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	for _, c := range gc.communicators {
		if err := c.checkOpen(); err != nil {
			return s.Refuse(c.group, err)
		}
	}
	var sends, receives []*p2p.End
	for i, call := range gc.calls {
		p := call.plan
		if call.message != nil {
			messageEnd, err := call.message.Launch(s)
			if err != nil {
				gc.failCommunicators(i, err)
				return err
			}
			if p.Operation == driver.Send {
				sends = append(sends, messageEnd)
			} else {
				receives = append(receives, messageEnd)
			}
		} else if err := p.c.admit(s, p); err != nil {
			gc.failCommunicators(i, err)
			return s.Refuse(p.c.group, err)
		}
	}
	for _, messageEnd := range receives {
		messageEnd.AddReceive()
	}
	isLaunched := false
	err := gc.gpu.Do(func() (err error) {
		if isLaunched, err = gc.queueGraph(graph, s, gc.gpu.CUDA); err == nil {
			err = errors.Join(gc.queueAfterGraph(graph, s, gc.gpu.CUDA, sends), s.RecordQueued())
		}
		return err
	})
	if err != nil {
		for _, messageEnd := range receives {
			if !isLaunched { // a launched graph uses the receives until the teardown
				messageEnd.RemoveReceive()
			}
		}
		gc.failCommunicators(len(gc.calls), err)
		for _, c := range gc.communicators {
			s.MarkReported(c.group)
		}
	}
	return err
}

// queueGraph requires s.Mu.
func (gc *graphCalls) queueGraph(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver,
) (isLaunched bool, err error) {
	for _, c := range gc.orderedCommunicators {
		if err := c.direct.order.Begin(c.group, s, false, api); err != nil {
			return false, err
		}
	}
	err = graph.Queue(s)
	return err == nil, err
}

// queueAfterGraph requires s.Mu.
func (gc *graphCalls) queueAfterGraph(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver, sends []*p2p.End,
) error {
	for _, c := range gc.orderedCommunicators {
		if err := c.direct.order.End(s, api); err != nil {
			return err
		}
	}
	for _, e := range sends {
		if err := e.AddSend(s); err != nil {
			return err
		}
	}
	return graph.RecordEvents(s)
}

// failCommunicators makes the groups of the first callCount calls fail, because other ranks expect
// these calls.
func (gc *graphCalls) failCommunicators(callCount int, err error) {
	for _, call := range gc.calls[:callCount] {
		_ = call.plan.c.faults.failAfterQueueError(&call.plan.Call, err)
	}
}

// Close releases the communicators and the memory. It may wait for other ranks.
// allCompleted must be set if all launches have completed.
func (gc *graphCalls) Close(allCompleted bool) {
	var messages []*p2p.CapturedMessage
	for _, call := range gc.calls {
		if call.message != nil {
			messages = append(messages, call.message)
		}
	}
	for _, c := range gc.communicators {
		if allCompleted {
			c.messages.ReleaseGraph(messages)
		}
		c.graphs.Done()
	}
	for _, c := range gc.windowCommunicators {
		c.windowGraphs.Add(-1)
	}
	for _, call := range gc.calls {
		if len(call.plainUses) > 0 {
			call.plan.c.device.memory.UseCounts.EndPlainCalls(call.plainUses)
		}
	}
}
