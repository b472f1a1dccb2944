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

// graphCalls implements stream.Calls. It holds the group calls in one CUDA graph, which may belong
// to several groups. Each launch of the graph gives each collective a new ticket (its number in
// the group).
type graphCalls struct {
	gpu           *gpu.GPU
	calls         []*capturedCall                     // in the order of the capture
	communicators []*communicator                     // in the order in which they are locked
	recordings    map[*communicator]*direct.Recording // number the collectives in the capture
	// orderedCommunicators use a direct.LaunchOrder, which orders the launches of the graph.
	orderedCommunicators []*communicator
	// windowCommunicators have calls on the window path.
	windowCommunicators []*communicator
}

type capturedCall struct {
	plan    *plan
	message *p2p.CapturedMessage // nil for a collective
	// plainUses counts the call as a use of its segments until the graph is closed. It is empty
	// unless the call has plain kernels, for which NCCL may have mapped the segments on other ranks.
	plainUses []*memory.UseCount
}

func newGraphCalls(g *gpu.GPU) stream.Calls {
	return &graphCalls{gpu: g, recordings: map[*communicator]*direct.Recording{}}
}

// Record adds a call to the graph that stream s is capturing. The caller must hold the locks of
// the stream and the communicator.
func (gc *graphCalls) Record(s *stream.Stream, preparedPlan driver.Plan) error {
	p := preparedPlan.(*plan)
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
	// In each launch, a Send waits until the previous launch's message has been copied.
	s.Capture.HasOtherWaits = true
	return c.messages.Record(s, messagePlan(p), func(m *p2p.CapturedMessage) {
		gc.add(&capturedCall{plan: p, message: m})
	})
}

// add appends a call to gc.calls and notes its uses. It requires c.mu of the call's communicator
// c.
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

// hasPlainKernels reports whether the call launches NCCL kernels that do not access windows
// (memory registered with NCCL).
func (call *capturedCall) hasPlainKernels() bool {
	return call.message == nil && call.plan.usesNCCL() && call.plan.Path != driver.PathWindow
}

func compareLockPositions(a, b *communicator) int {
	return cmp.Compare(a.lockPosition, b.lockPosition)
}

// nextPosition returns the position of c's next collective in the capture. It requires c.mu.
func (gc *graphCalls) nextPosition(c *communicator) driver.Recorded {
	r := gc.recordings[c]
	if r == nil {
		r = c.recorder.recordings.NewRecording(0)
		gc.recordings[c] = r
	}
	return r.NextPosition()
}

// Launch assigns tickets to the collectives and queues the graph on stream s. If that fails, it
// makes the groups fail whose calls other ranks expect. The caller must hold the locks of the
// graph and the stream.
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
	isQueued := false
	err := gc.gpu.Do(func() error {
		if err := gc.queueGraph(graph, s, gc.gpu.CUDA); err != nil {
			return err
		}
		isQueued = true
		return errors.Join(gc.queueAfterGraph(graph, s, gc.gpu.CUDA, sends), s.RecordQueued())
	})
	if err != nil {
		if !isQueued { // a queued graph uses the receives until the teardown
			for _, messageEnd := range receives {
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

// queueGraph makes stream s wait for the latest launches of the groups, and queues the graph. It
// requires s.Mu.
func (gc *graphCalls) queueGraph(
	graph *stream.Graph, s *stream.Stream, api *cuda.Driver,
) error {
	const isOnlyNCCL = false // the graph may contain direct kernels
	for _, c := range gc.orderedCommunicators {
		if err := c.direct.order.Begin(c.group, s, isOnlyNCCL, api); err != nil {
			return err
		}
	}
	return graph.Queue(s)
}

// queueAfterGraph ends the launches in the order of each group, announces the graph's sends and
// records its events. It requires s.Mu.
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

// Close frees the resources of the graph's messages and lets the communicators and the segments be
// freed. It may wait for other ranks. allCompleted must be set if all launches have completed.
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
